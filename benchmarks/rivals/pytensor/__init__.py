"""The classifier in PyTensor, which goes on where Theano ended. Importing this alone imports no PyTensor."""
