"""A trained model in the formats of other programs.

All have the same inputs: words [batch, time], and h and c [layers, batch, hidden] before the first word, both
zero where a text begins. All have the same outputs: logits [batch, time, vocabulary], and h and c after the
last word.
"""
