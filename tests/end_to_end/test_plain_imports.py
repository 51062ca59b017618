"""Programs that know nothing of pretrainkit import torchvision, timm and transformers in its environment."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pretrainkit.running.doctor import finding_of
from pretrainkit.running.exercises import exercise

pytestmark = pytest.mark.slow

SOURCE = Path(sys.modules["pretrainkit"].__path__[0]).parent
PLAIN = """
import torch, transformers
size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
transformers.AutoModel.from_config(transformers.BertConfig(**size)).save_pretrained("exported")
model = transformers.AutoModel.from_pretrained("exported")
print(tuple(model(torch.tensor([[1, 2]])).last_hidden_state.shape))
import timm
print(tuple(timm.create_model("test_vit", img_size=32)(torch.zeros(1, 3, 32, 32)).shape))
"""


@pytest.fixture
def torchvision_folder() -> Path:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or find_spec("timm") is None:
        pytest.skip("timm and torchvision are not installed: pip install 'pretrainkit[vision]'")
    return Path(spec.origin).parent


def test_plain_programs_work_in_this_environment(torchvision_folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", PLAIN]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(1, 2, 8)", "(1, 1000)"]


def test_a_torchvision_of_another_build_is_also_fixed_for_plain_programs(
    torchvision_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed package without its compiled library, which is what Python sees where that does not load."""
    path = tmp_path / "installed"
    shutil.copytree(torchvision_folder, path / "torchvision", ignore=shutil.ignore_patterns("*.so", "*.pyd"))
    extension = path / "torchvision" / "extension.py"
    text = extension.read_text(encoding="utf-8").partition("\n\n# Added by pretrainkit")[0]
    extension.write_text(text, encoding="utf-8")
    shared = tmp_path / "shared.py"
    os.link(extension, shared)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (path, SOURCE))))
    (found,) = exercise(["torchvision"]).values()
    assert "operator torchvision::nms does not exist" in found.fault
    finding = finding_of("torchvision", found)
    assert finding.state == "broken"
    mended = subprocess.run(finding.fix.partition(": ")[2], shell=True, capture_output=True, text=True, timeout=200)
    assert mended.returncode == 0, mended.stderr
    assert "can be imported now" in mended.stdout
    (found,) = exercise(["torchvision"]).values()
    assert "torchvision.ops and the image decoders do not work" in found.lack
    assert finding_of("torchvision", found).state == "limited"

    # A file that an installer shares between environments is not written to.
    assert extension.read_text(encoding="utf-8") != text
    assert shared.read_text(encoding="utf-8") == text
