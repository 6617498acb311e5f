"""A recurrent network for text."""

from torch import Tensor, nn

from coprefl_flwr.data import CHARACTERS


class CharLSTM(nn.Module):
    """CyclicFL's CharLSTM-256, which predicts the next character.

    The paper gives nothing but the 256 units; the rest is as in LEAF (Caldas et al. 2018). Takes
    int64 (batch, length), positions in `CHARACTERS`, gives (batch, num_classes) logits. There is an
    embedding for every character whatever `num_classes` is, so the linear layer is the head.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.fc = nn.Linear(256, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits (batch, num_classes)."""
        outputs, _ = self.lstm(self.embedding(text))
        logits: Tensor = self.fc(outputs[:, -1])
        return logits
