"""The installer, without installing anything."""

import threading
from pathlib import Path

import pytest

from tests.servers import install, programs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSTROOM_TEST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert programs.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("POSTROOM_TEST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert programs.cache_folder() == tmp_path / "postroom-tests"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert programs.cache_folder() == tmp_path / ".cache" / "postroom-tests"


def test_without_root_and_sudo_it_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(install.InstallError) as caught:
        install.install_packages(["mariadb-server", "maven"])
    [command] = [line.strip() for line in str(caught.value).splitlines() if "sudo" in line]
    assert command == (
        "sudo sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive"
        " apt-get install -y --no-install-recommends mariadb-server maven'"
    )


@pytest.mark.parametrize(
    ("root", "prefix"), [(True, []), (False, ["sudo", "-n"])], ids=["root", "sudo"]
)
def test_all_packages_in_one_call(
    monkeypatch: pytest.MonkeyPatch, root: bool, prefix: list[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(install, "succeeds", lambda argv: argv == ["sudo", "-n", "true"])
    monkeypatch.setattr(install, "run", calls.append)
    install.install_packages(["mariadb-server", "maven"])
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    assert [call[: len(quiet) + 1] for call in calls] == [[*quiet, "update"], [*quiet, "install"]]
    assert {"mariadb-server", "maven", "--no-install-recommends"} <= set(calls[1])


def test_an_interrupted_download_leaves_nothing(cache: Path) -> None:
    def fetch(into: Path) -> None:
        (into / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install.download("thing-1", fetch)
    assert list(cache.iterdir()) == []


def test_what_a_killed_download_left_is_removed(cache: Path) -> None:
    (cache / "thing-1.part-x").mkdir()
    (cache / "thing-2").mkdir()
    install.remove_leftovers()
    assert [path.name for path in cache.iterdir()] == ["thing-2"]


def test_two_at_once_download_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    fetched: list[Path] = []
    both = threading.Barrier(2)

    def missing_downloads(*, nightly: bool = False) -> list[tuple[str, object]]:
        return [] if (cache / "thing-1").exists() else [("thing-1", fetched.append)]

    def missing_packages() -> list[str]:
        # The first look of both happens before either holds the lock.
        if threading.current_thread().name.startswith("first look"):
            threading.current_thread().name = "later"
            both.wait(10)
        return []

    monkeypatch.setattr(install, "missing_downloads", missing_downloads)
    monkeypatch.setattr(install, "missing_packages", missing_packages)
    threads = [threading.Thread(target=install.install, name="first look") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert (cache / "thing-1").is_dir()


def test_a_failed_command_shows_what_it_wrote() -> None:
    with pytest.raises(install.InstallError, match=r"ended with 4(?s:.*)no such host"):
        install.run(["sh", "-c", "echo no such host; exit 4"])
