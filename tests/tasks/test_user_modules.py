"""Modules of users are imported by name and by path, once, and import the files beside them."""

import logging
import sys

import pytest

from pretrainkit.errors import ConfigError
from pretrainkit.tasks.user_modules import import_modules, user_object


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_a_file_is_run_once_and_imports_its_neighbours(tmp_path):
    (tmp_path / "user_modules_helper.py").write_text("TIMES = []\n")
    (tmp_path / "mine.py").write_text("from user_modules_helper import TIMES\nTIMES.append(1)\n")
    import_modules([str(tmp_path / "mine.py")])
    import_modules([str(tmp_path / "mine.py"), "user_modules_helper"])
    assert sys.modules["user_modules_helper"].TIMES == [1]
    assert sys.path[-1] == str(tmp_path)


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"import sys\nsys.modules['user_modules_{name}'] = sys\n")
        import_modules([str(tmp_path / name / "mine.py")])
    assert {"user_modules_a", "user_modules_b"} <= sys.modules.keys()


@pytest.mark.parametrize("module", ["no_such_module_at_all", "broken.py"])
def test_modules_that_cannot_be_imported_are_named(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"the module {module} cannot be imported: "):
            import_modules([module])


def test_a_file_that_is_gone_is_taken_from_the_current_folder_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no module /gone/mine.py\n  .*copy the file to the current folder"):
        user_object("/gone/mine.py:READER")
    (tmp_path / "mine.py").write_text("READER = 3\n")
    with caplog.at_level(logging.WARNING):
        assert user_object("/gone/mine.py:READER") == 3
        import_modules(["/gone/mine.py"])  # readers are looked up for each file
    assert caplog.messages == ["there is no module /gone/mine.py; using mine.py of the current folder"]
    with pytest.raises(ConfigError, match=r"there is no module gone/mine.py\n  .*relative to the current folder"):
        user_object("gone/mine.py:READER")  # typed by hand
