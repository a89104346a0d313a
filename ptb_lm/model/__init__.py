"""What a language model is, in no framework: hyper-parameters, parameters, the oracle, the contract."""
