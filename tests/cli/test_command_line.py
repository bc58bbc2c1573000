"""What all commands have in common: help, errors, exit codes, masks, pipes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import threading
from contextlib import suppress
from uuid import uuid4

import click
import psycopg
import pytest

from postroom._version import __version__
from postroom.cli.app import cli
from postroom.cli.exit_codes import ExitCode, code_of, complain
from postroom.errors import ConfigError, EventError, NotFoundError, SchemaError, StoreUnknownError
from tests.cli.command import Running, call, call_afresh


def test_help_lists_the_commands_and_the_exit_codes(tmp_path):
    done = call("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    for verb in ("demo", "migrate", "run", "status", "version"):
        assert f"\n  {verb} " in done.stdout
    for code in (0, 1, 2, 3, 70, 130, 141):
        assert f"\n  {code:>5}  " in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 88


def test_without_a_command_it_helps_and_fails(tmp_path):
    done = call(cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: postroom ")


def test_each_command_has_an_example():
    assert set(cli.commands) == {
        "audit", "bury", "cancel", "config", "dashboard", "dead", "demo", "doctor", "edit", "forget",
        "health", "key", "limit", "list", "migrate", "operations", "pause", "prune", "purge", "reconcile",
        "replay", "reschedule", "resume", "retry-now", "run", "show", "skip", "status", "story",
        "version",
    }  # fmt: skip
    for name, command in cli.commands.items():
        text = command.get_help(click.Context(command, info_name=f"postroom {name}"))
        assert "Example" in text
        assert f"postroom {name} " in text.partition("Example")[2]


@pytest.mark.parametrize("run", [call, call_afresh])
def test_version(tmp_path, run):
    done = run("version", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"postroom {__version__}"
    short = run("--version", cwd=tmp_path)  # U20
    assert (short.returncode, short.stdout) == (0, f"postroom {__version__}\n")
    told = json.loads(run("version", "--json", cwd=tmp_path).stdout)
    assert set(told) == {"postroom", "python", "sqlite"}
    assert told["postroom"] == __version__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["staus"], "postroom: No such command 'staus'."),
        (["status"], "Missing option '--store' (env var: 'POSTROOM_STORE', in postroom.toml: store)"),
        (["status", "--store", "sqlite:///x.db", "--jsn"], "postroom status: No such option"),
        (["status", "--store", "app.db"], "not a URL"),
        (["status", "--store", "sqlitee:///x.db"], "did you mean 'sqlite'? Known: "),
        (["status", "--store", "sqlite:///x.db?prefx=a_"], "did you mean 'prefix'?"),
        (["status", "--store", "memory:"], "exists only inside one process"),
        (["status", "--store", "sqlite:///x.db", "--watch", "0"], "--watch must be at least 0.1 seconds"),
        (["status", "--store", "sqlite:///x.db", "--stream", ""], "stream is empty"),
        (["run", "--store", "sqlite:///x.db", "--broker", "hndlers:a:b"], "did you mean 'handlers'?"),
        (["run", "--store", "sqlite:///x.db", "--broker", "handlers:no_such:h"], "no module 'no_such'"),
        (["run", "--store", "sqlite:///x.db", "--broker", "null:", "--batch-size", "0"], "batch_size"),
        (["run", "--store", "sqlite:///x.db", "--broker", "null:", "--poll-seconds", "nan"], "'nan'"),
        (["run", "--store", "sqlite:///x.db", "--broker", "null:", "--batch-size", "9",
          "--max-batch-size", "3"], "max_batch_size (3) must not be below batch_size (9)"),
        (["demo", "--orders", "0"], "0 is not in the range"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("postroom")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("verb", [["status"], ["run", "--broker", "null:"]])
def test_tables_that_are_missing_are_exit_code_3_and_say_what_to_do(tmp_path, verb):
    done = call(*verb, "--store", "sqlite:///x.db", cwd=tmp_path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert f"run: postroom migrate --store sqlite:///{tmp_path}/x.db" in done.stderr
    assert not (tmp_path / "x.db").exists()


def test_a_file_that_is_no_database_is_exit_code_3(tmp_path):
    (tmp_path / "x.db").write_text("hello, I am a text and no database at all\n" * 100)
    done = call("status", "--store", "sqlite:///x.db", cwd=tmp_path)
    assert done.returncode == 3
    assert "not a database" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_environment_stands_in_for_the_options(tmp_path):
    done = call("migrate", cwd=tmp_path, POSTROOM_STORE="sqlite:///env.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "env.db").exists()
    bad = call("run", cwd=tmp_path, POSTROOM_STORE="sqlite:///env.db", POSTROOM_BROKER="oops:")
    assert "unknown broker scheme 'oops'" in bad.stderr


def test_secrets_are_never_printed(tmp_path):
    urls = {
        "postgresql://u:s3cret@127.0.0.1:1/db": 3,
        "postgresql://u:s3c@ret@h/db": 2,
        "x://u:s3cret@h:pp/": 2,
    }
    for url, code in urls.items():
        for mode in ([], ["--debug"]):
            done = call(*mode, "status", "--store", url, cwd=tmp_path)
            assert done.returncode == code
            assert "s3c" not in done.stdout + done.stderr


def test_a_traceback_comes_only_when_asked_for(tmp_path):
    quiet = call("status", "--store", "sqlite:///x.db", cwd=tmp_path)
    loud = call("--debug", "status", "--store", "sqlite:///x.db", cwd=tmp_path)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert (quiet.returncode, loud.returncode) == (3, 3)


def test_help_fits_80_columns(tmp_path):
    for name in ("", *sorted(cli.commands)):
        done = call(*filter(None, (name, "--help")), cwd=tmp_path, COLUMNS="80")
        assert max(len(line) for line in done.stdout.splitlines()) <= 80, name


def test_the_shell_completes_commands_and_options(tmp_path):
    def completed(words):
        count = str(len(words.split()) - 1)
        done = call(
            cwd=tmp_path, _POSTROOM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count
        )
        return done.stdout.split()

    assert completed("postroom re") == [
        "plain,reconcile", "plain,replay", "plain,reschedule", "plain,resume", "plain,retry-now",
    ]  # fmt: skip
    assert completed("postroom replay --new") == ["plain,--new-id"]
    script = call(cwd=tmp_path, _POSTROOM_COMPLETE="bash_source")
    assert (script.returncode, "complete " in script.stdout) == (0, True)


def test_tables_of_a_newer_postroom_are_exit_code_3(tmp_path):
    call("migrate", "--store", "sqlite:///x.db", cwd=tmp_path)
    with sqlite3.connect(tmp_path / "x.db") as conn:
        conn.execute("UPDATE postroom_meta SET value = '99' WHERE name = 'schema_version'")
    conn.close()
    for verb in (["list"], ["replay", "--all"], ["dead"], ["run", "--broker", "null:"]):
        done = call(*verb, "--store", "sqlite:///x.db", cwd=tmp_path)
        assert done.returncode == 3
        assert "created by a newer postroom; this one knows 2. Upgrade postroom here" in done.stderr
        assert len(done.stderr.splitlines()) <= 2  # `run` has said that it starts
    assert call("doctor", "--store", "sqlite:///x.db", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    "scheme", ["postgresql", "mysql", pytest.param("mongodb", marks=pytest.mark.slow)]
)
def test_a_port_where_something_else_listens_is_exit_code_3(tmp_path, scheme):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"{scheme}://u:s3cret@127.0.0.1:{server.getsockname()[1]}/shop"
        done = call("status", "--store", url, cwd=tmp_path)
        assert done.returncode == 3
        assert "is unreachable: " in done.stderr
        assert "Check the URL, that the server is running" in done.stderr
        assert "s3cret" not in done.stderr
        assert len(done.stderr.splitlines()) == 1
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_user_without_rights_is_told_which(tmp_path, postgres_place):
    postgres_place.migrate()
    name = f"r_{uuid4().hex[:12]}"
    schema = postgres_place.url.rpartition("%3D")[2]
    url = postgres_place.url.replace("postgres@", f"{name}@")
    with psycopg.connect(postgres_place.url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {name} LOGIN")
        server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        server.execute(f"GRANT SELECT ON postroom_meta TO {name}")
        try:
            for verb in (["status"], ["replay", "--all"], ["doctor"]):
                done = call(*verb, "--store", url, cwd=tmp_path)
                assert done.returncode == 3, done.stderr
                assert "permission denied for table postroom_" in done.stderr
                assert "GRANT SELECT" in done.stderr
                assert len(done.stderr.splitlines()) == 1
        finally:
            server.execute(f"DROP OWNED BY {name}")
            server.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["run", "--help"]])
def test_a_reader_that_went_away_is_no_traceback(tmp_path, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = call(*arguments, cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_ctrl_c_is_exit_code_130_without_a_traceback(tmp_path):
    call("migrate", "--store", "sqlite:///x.db", cwd=tmp_path)
    arguments = ("status", "--store", "sqlite:///x.db", "--watch", "0.1", "--json")
    with Running(*arguments, cwd=tmp_path, PYTHONUNBUFFERED="1") as watch:
        watch.listen()
        watch.send(signal.SIGINT)
        assert watch.end() == 130
        assert "Traceback" not in "".join(watch.lines)
    for line in watch.out:
        assert json.loads(line)["streams"][0]["stream"] == "main"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (EventError("stream", "x"), 2),
        (click.UsageError("x"), 2),
        (SchemaError("x"), 3),
        (StoreUnknownError("x"), 3),
        (NotFoundError("x"), 1),
        (click.ClickException("x"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (RuntimeError("x"), 70),
    ],
)
def test_exit_codes(error, code):
    assert code_of(error) is ExitCode(code)


def test_what_nobody_expected_says_how_to_see_more(capsys):
    assert complain(RuntimeError("a\nb password=s3cret"), debug=False) == 70
    assert capsys.readouterr().err == (
        "postroom: unexpected RuntimeError: a b password=***; "
        "run `postroom --debug …` for the traceback\n"
    )
