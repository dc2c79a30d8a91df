"""Models that tests trace, as a user would write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, HIDDEN, HEADS, LAYERS = 1000, 256, 4, 3


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.attention = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The hidden states after the layer."""
        B, T, _ = x_BTD.shape
        heads = self.attention(self.norm(x_BTD)).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen_BHTK = scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x_BTD = x_BTD + self.output(seen_BHTK.transpose(1, 2).reshape(B, T, -1))
        return x_BTD + self.down(torch.relu(self.up(x_BTD)))


class Model(nn.Module):
    """A decoder whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("unused", torch.zeros(7))
        nn.init.trunc_normal_(self.head.weight, std=0.02, a=-0.04, b=0.04)  # draws again what lies outside

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The loss of each token after itself."""
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return cross_entropy(self.head(x_BTD).flatten(0, 1).float(), ids_BT.flatten())


def build() -> nn.Module:
    """The model, for inputs of any length."""
    return Model()


class BrokenLayer(Layer):
    """A layer in whose middle Dynamo cannot go on."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The hidden states after the layer."""
        x_BTD = torch.relu(self.norm(x_BTD))
        print(end="")
        return torch.tanh(self.down(torch.relu(self.up(x_BTD))))


def build_broken() -> nn.Module:
    """A model of layers that compile to two graphs each."""
    model = Model()
    model.layers = nn.ModuleList(BrokenLayer() for _ in range(LAYERS))
    return model


def build_half() -> nn.Module:
    """The model, converted after it was built."""
    return Model().to(torch.bfloat16)


class Fails(Model):
    """A model that raises as soon as it meets numbers."""

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The loss, of tokens without numbers alone."""
        if type(ids_BT) is Tensor:
            raise ValueError("no numbers, please")
        return super().forward(ids_BT)


def fails() -> nn.Module:
    """A model that can be traced and not executed."""
    return Fails()


def with_inputs() -> tuple[nn.Module, tuple[Tensor]]:
    """The model, and the inputs of its forward pass."""
    return Model(), (torch.arange(192).view(3, 64),)


def no_module() -> int:
    """No module, as a mistake."""
    return 3


def raises() -> nn.Module:
    """No module either."""
    raise RuntimeError("no such weights\nand more")
