"""Downloads Prometheus 3 and its Alertmanager from Debian testing into build/prometheus3, beside the system's versions.

    python dashboards/prometheus3.py

Both are unpacked, not installed. tests/dashboards/test_prometheus3.py tests the alert rules with them and is skipped if
they are missing. Needs Debian's apt, which checks signatures. Source: $DEBIAN_MIRROR if set, else apt's own mirror.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packaging"))

from chroot import KEYRING, ChrootError, mirror  # noqa: E402

FOLDER = ROOT / "build" / "prometheus3"
PACKAGES = ("prometheus", "promtool", "prometheus-alertmanager")
# sourceparts "-": no further lists of sources. Without Valid-Until, an old mirror can be used. As user _apt, apt could
# not write into FOLDER.
SETTINGS = """\
Dir::State "{apt}";
Dir::State::status "{apt}/status";
Dir::Cache "{apt}/cache";
Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "-";
Acquire::Check-Valid-Until "false";
APT::Sandbox::User "root";
"""


def apt_get(*words: str) -> None:
    """Runs apt-get with configuration, lists and state in FOLDER, so that the system's are not changed."""
    apt = FOLDER / "apt"
    done = subprocess.run(
        ["apt-get", "-q", f"--config-file={apt}/apt.conf", *words], cwd=apt, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"prometheus3: apt-get {words[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def main() -> int:
    try:
        source = f"deb [signed-by={KEYRING}] {mirror()} testing main\n"
    except (ChrootError, OSError) as error:
        print(f"prometheus3: {error}")
        return 1
    shutil.rmtree(FOLDER, ignore_errors=True)
    apt = FOLDER / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(source)
    (apt / "apt.conf").write_text(SETTINGS.format(apt=apt))
    apt_get("update")
    apt_get("download", *PACKAGES)
    for package in apt.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, FOLDER], check=True)
    shutil.rmtree(apt)
    version = subprocess.run([FOLDER / "usr" / "bin" / "prometheus", "--version"], capture_output=True, text=True)
    print(f"prometheus3: {(version.stdout or version.stderr).partition(' (')[0]} in {FOLDER / 'usr' / 'bin'}")
    return version.returncode


if __name__ == "__main__":
    sys.exit(main())
