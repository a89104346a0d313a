"""The plain torch loop that people write: what the models' speed is compared with."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ptb_lm.config import Config
from ptb_lm.text import Ids

Windows = Sequence[tuple[Ids, Ids]]


class PlainModel(nn.Module):
    """A language model of torch's own modules."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        hidden, drop = config.hidden_size, 1 - config.keep_prob
        self.embedding = nn.Embedding(vocabulary_size, hidden)
        self.lstm = nn.LSTM(hidden, hidden, config.num_layers, dropout=drop)
        self.linear = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(drop)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -config.init_scale, config.init_scale)

    def forward(self, x_TB: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the logits [T, B, V] and the state."""
        output_TBH, state = self.lstm(self.dropout(self.embedding(x_TB)), state)
        return self.linear(self.dropout(output_TBH)), state


class PlainLoop:
    """Trains a PlainModel on the CPU: cross_entropy, clip_grad_norm_ and SGD."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        self.config = config
        self.model = PlainModel(config, vocabulary_size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.learning_rate)
        shape = (config.num_layers, config.batch_size, config.hidden_size)
        self.state = (torch.zeros(shape), torch.zeros(shape))

    def train(self, windows: Windows) -> float:
        """Train on some windows; return the negative log likelihood of their targets, in nats."""
        total = 0.0
        for x_BT, y_BT in windows:
            x_TB, y_TB = (torch.from_numpy(ids.T.astype(np.int64)) for ids in (x_BT, y_BT))
            self.state = (self.state[0].detach(), self.state[1].detach())
            logits_TBV, self.state = self.model(x_TB, self.state)
            mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), y_TB.flatten())
            self.optimizer.zero_grad()
            (mean * self.config.num_steps).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            total += mean.item() * y_BT.size
        return total
