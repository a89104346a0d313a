"""The definition of a language model without a framework: hyper-parameters, cells, reference, contract."""
