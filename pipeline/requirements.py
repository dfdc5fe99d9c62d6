"""Requirements of the pipeline beside Orthia itself, and what to do if one is missing."""

import importlib.util
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from orthia.pipeline.errors import MissingRequirement

MINIMUM_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "adbc_driver_postgresql", "xxhash")
_JVM_DIRECTORY: Final = Path("/usr/lib/jvm")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS: Final = 30


def require_extra() -> None:
    """Raise MissingRequirement, with the command that installs them, if packages are missing."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingRequirement(
            f"the data pipeline needs {', '.join(missing)}, which a broker does not: install them"
            f" with `{sys.executable} -m pip install '.[pipeline]'` in the checkout that Orthia was"
            " installed from, or with 'WHEEL[pipeline]' for its wheel"
        )


def require_names(environment: Mapping[str, str] = os.environ) -> None:
    """Raise MissingRequirement if this user or this host has no name; Java ends without one."""
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise MissingRequirement(
            f"user {uid} has no name here, and Spark does not start without one: add the line"
            f" `orthia:x:{uid}:{os.getgid()}::/tmp:/usr/sbin/nologin` to /etc/passwd, of the"
            " container's image if this is one"
        ) from None
    host = socket.gethostname()
    if environment.get("SPARK_LOCAL_IP"):
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        raise MissingRequirement(
            f"the name of this host, {host}, has no address, and Spark does not start without one:"
            f" add the line `127.0.0.1 {host}` to /etc/hosts, or set SPARK_LOCAL_IP to an address"
            " of this host, 127.0.0.1 unless --master names a cluster"
        ) from None


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the home of a Java that Spark can run on.

    JAVA_HOME first, then ``java`` on the PATH, then what Debian and Ubuntu install. Raises
    MissingRequirement.
    """
    found: list[str] = []
    for home in _candidates(environment):
        try:
            version = _java_version(home / "bin" / "java")
        except FileNotFoundError:
            continue
        except MissingRequirement as error:
            found.append(str(error))
            continue
        if version >= MINIMUM_JAVA:
            return home
        found.append(f"{home} has Java {version}")
    seen = f" ({'; '.join(found)})" if found else ""
    raise MissingRequirement(
        f"the data pipeline runs on Spark, which needs Java {MINIMUM_JAVA} or newer, and none was"
        f" found{seen}: install it with `sudo apt-get install default-jre-headless`, or set"
        " JAVA_HOME"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    configured = environment.get("JAVA_HOME")
    if configured:
        yield Path(configured)
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    if _JVM_DIRECTORY.is_dir():
        yield from sorted(path for path in _JVM_DIRECTORY.iterdir() if path.is_dir())


def _java_version(java: Path) -> int:
    """Return the major version; raises FileNotFoundError, MissingRequirement if it is unknown."""
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's own Java
            [str(java), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise MissingRequirement(f"`{java} -version` did not end in {_ANSWER_SECONDS} s") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MissingRequirement(f"{java} cannot be run: {error.strerror}") from None
    matched = _VERSION.search(answer.stderr)
    if answer.returncode == 0 and matched is not None:
        return int(matched[1])
    lines = answer.stderr.strip().splitlines()
    # Java prints options of the environment before the error itself.
    said = next((line for line in lines if not line.startswith(("NOTE:", "Picked up"))), "nothing")
    raise MissingRequirement(f"`{java} -version` ended with {answer.returncode} and says {said!r}")
