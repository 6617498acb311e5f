"""A recurrent network for text."""

from torch import Tensor, nn

from coprefl_flwr.data import CHARACTERS

EMBEDDING = 8
UNITS = 256


class CharLSTM(nn.Module):
    """CyclicFL's CharLSTM-256, which predicts the next character.

    The paper gives nothing but the 256 units; the rest is as in LEAF (Caldas et al. 2018): an
    embedding of size 8, two LSTM layers, a linear layer on the last output. Takes int64
    (batch, length), positions in `CHARACTERS`, gives (batch, num_classes) logits. There is an
    embedding for every character whatever `num_classes` is, so the linear layer is the head.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, UNITS, num_layers=2, batch_first=True)
        self.fc = nn.Linear(UNITS, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits (batch, num_classes)."""
        outputs, _ = self.lstm(self.embedding(text))
        logits: Tensor = self.fc(outputs[:, -1])
        return logits
