"""What is drawn was compared with the model's own output, or says that it was not; what a capture lacks is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Attention, Capture, capture


class Layer(nn.Module):
    """Attention; `change` alters its output where no watcher sees it."""

    def __init__(self, change: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.change = nn.Linear(32, 96), change

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + output.transpose(1, 2).flatten(2)


def captured(n: int, kind: torch.dtype = torch.float32, **how: Any) -> Capture:
    model = Layer().eval().to(kind)
    with torch.no_grad(), capture(model, **how) as cap:
        model(torch.randn(2, n, 32, generator=torch.Generator().manual_seed(1)).to(kind))
    return cap


def of_kind(att: Attention, kind: str, head: int = 1) -> list[Any]:
    return [one for one in att.check(head=head) if one.kind == kind]


def test_short_texts_are_compared_whole() -> None:
    widget = captured(20).widget()
    assert widget.facts["checked"] == "all"
    assert Attention(torch.zeros(3, 4), torch.zeros(3, 4)).witness is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_row_of_a_longer_text_is_compared_when_its_head_is_examined(dtype: torch.dtype) -> None:
    (att,) = captured(300, dtype).attention
    witness: Any = att.witness
    assert witness.checked == "rows"
    assert not of_kind(att, "another output")
    output = torch.stack([att.output(0, head) for head in range(4)])[None]
    row = output[0, 1, 211]
    other = torch.roll(row, 1)  # as of weights on other keys
    witness.digest.sums[0, 1, 211] += (other - row) @ directions(len(row))
    (found,) = of_kind(att, "another output")
    assert (found.severity, found.query) == ("error", 211)
    assert not of_kind(att, "another output", head=0)


def directions(size: int) -> Tensor:
    from attnwidget._capture.verify.witness import _directions

    return _directions(size)


@pytest.mark.parametrize("how", [{"dtype": torch.float16}, {"values": False}, {"heads": [1, 2]}, {"keep": "overview"}])
def test_where_no_output_is_kept_only_some_rows_were_checked(how: dict[str, Any]) -> None:
    (att,) = captured(300, **how).attention
    assert att.witness is not None
    assert att.witness.checked == "some"


def test_other_rules_are_not_the_models() -> None:
    (att,) = captured(20).attention
    assert att.what_if({"window": 3}).witness is None


def run(model: nn.Module, cap: Capture | None = None) -> Capture:
    with torch.no_grad(), cap or capture(model) as found:
        model(torch.randn(1, 9, 32))
    return found


class Sigmoid(Layer):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return x + ((q @ k.mT).sigmoid() @ v).transpose(1, 2).flatten(2)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("as in a run that was stopped")


def test_a_capture_that_is_partly_read_says_so_at_its_end_and_on_the_widget() -> None:
    model = nn.Sequential(Layer(), Sigmoid(), Sigmoid(), Layer()).eval()
    with pytest.warns(UserWarning, match="2 attention maps can be shown; 2 modules cannot") as said:
        cap = run(model)
    (report,) = {str(one.message) for one in said}
    assert report.count("\n") == 2  # both modules have one reason
    assert "'1', '2': between its scores and v" in report
    (finding,) = of_kind(cap.attention[0], "incomplete capture")
    assert finding.message.startswith("2 attention maps can be shown")
    assert any(one["kind"] == "incomplete capture" for one in cap.widget().findings)


def test_a_forward_pass_that_raised_says_so() -> None:
    model = nn.Sequential(Layer(), Failing()).eval()
    with pytest.warns(UserWarning, match="its forward pass ended with RuntimeError"), pytest.raises(RuntimeError):
        run(model, cap := capture(model))
    assert list(cap.calls) == ["0"]
    assert of_kind(cap.attention[0], "incomplete capture")


def test_a_whole_capture_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            raise KeyError("handled while the model runs")
        except KeyError:
            cap = captured(9)
    assert not of_kind(cap.attention[0], "incomplete capture")
    assert cap.skipped == {}


def test_weights_of_nan_are_found() -> None:
    weights = torch.full((3, 3), 1 / 3)
    weights[1] = torch.nan
    (found,) = of_kind(Attention.from_weights(weights), "NaN in weights", head=0)
    assert (found.severity, found.query) == ("error", 1)


def test_a_saved_capture_can_be_compared_too(tmp_path: Path) -> None:
    cap = captured(300)
    cap.save(tmp_path / "cap.safetensors")
    (att,) = Capture.load(tmp_path / "cap.safetensors").attention
    witness: Any = att.witness
    assert witness.checked == "rows"
    assert not of_kind(att, "another output")
    witness.digest.sums[0, 1, 299] += 1
    assert of_kind(att, "another output")
    model = nn.Sequential(Layer(), Sigmoid()).eval()
    with pytest.warns(UserWarning, match="1 attention map can be shown"):
        run(model).save(tmp_path / "part.safetensors")
    (att,) = Capture.load(tmp_path / "part.safetensors").attention
    assert of_kind(att, "incomplete capture")
