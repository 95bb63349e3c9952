"""The third-party software in foreshock's packages: names, licences, and the licence texts that packages must have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

COMMON = Path("/usr/share/common-licenses")  # licence texts to which Debian's copyright files refer


class ComponentError(Exception):
    """The text is one line for the user."""


class Component(NamedTuple):
    name: str
    file: str  # path of a file of its Debian package, or the name of a library of gcc; "": not from Debian
    license: str  # SPDX expression
    homepage: str


# All software whose code is in a binary or a page of the packages, except glibc. The binaries load the system's glibc;
# only its start-up objects are linked in, which its licence permits without conditions.
COMPONENTS = [
    Component("Boost", "/usr/include/boost/version.hpp", "BSL-1.0", "https://www.boost.org"),
    Component("Chart.js", "/usr/share/javascript/chart.js/Chart.min.js", "MIT", "https://www.chartjs.org"),
    Component("fmt", "/usr/include/fmt/core.h", "MIT", "https://fmt.dev"),
    Component("GCC runtime", "libstdc++.a", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org"),
    Component("Highway", "/usr/include/hwy/highway.h", "Apache-2.0", "https://github.com/google/highway"),
    Component("nlohmann-json", "/usr/include/nlohmann/json.hpp", "MIT", "https://json.nlohmann.me"),
    Component("prometheus-cpp", "/usr/include/prometheus/registry.h", "MIT", "https://github.com/jupp0r/prometheus-cpp"),
    Component("spdlog", "/usr/include/spdlog/spdlog.h", "MIT", "https://github.com/gabime/spdlog"),
]  # fmt: skip
# Adapters contain inline code from torch's headers.
TORCH = Component("PyTorch", "", "BSD-3-Clause", "https://pytorch.org")


def package_of(file: str) -> str:
    """The Debian package that contains a file (by its path) or a library of gcc (by its name)."""
    if not file.startswith("/"):
        file = subprocess.check_output(["gcc", f"-print-file-name={file}"], text=True).strip()
    answer = subprocess.run(["dpkg", "-S", os.path.realpath(file)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ComponentError(f"{file} belongs to no Debian package; its licence has to go along")
    return answer.stdout.partition(":")[0]


def version_of(component: Component) -> str:
    query = ["dpkg-query", "-W", "-f", "${Version}", package_of(component.file)]
    return subprocess.check_output(query, text=True)


def statement_of(component: Component) -> str:
    """The copyright file of the component's Debian package. For Boost, only the licence text in that file. Its
    copyright statements have 2 MB, and the licence does not require them with binaries."""
    package = package_of(component.file)
    text = (Path("/usr/share/doc") / package / "copyright").read_text()
    if component.name != "Boost":
        return text
    stanzas = re.findall(r"^License: BSL-1\.0\n((?: .*\n)+)", text, re.M)  # the longest has the whole text
    return "\n".join(line.strip().removeprefix(".") for line in max(stanzas, key=len).splitlines()) + "\n"


def referred_licenses(text: str) -> set[str]:
    """The names of the files in /usr/share/common-licenses to which a statement refers."""
    return set(re.findall(r"common-licenses/([\w.+-]*[\w+])", text))  # without the full stop of a sentence


def copy_licenses(folder: Path, torch_license: Path | None) -> None:
    """Writes to `folder` the statement of each component, the licence of torch if given, and each licence text in
    COMMON that a statement or a component's `license` names."""
    folder.mkdir(parents=True)
    texts = {component: statement_of(component) for component in COMPONENTS}
    if torch_license is not None:
        texts[TORCH] = torch_license.read_text()
    for component, text in texts.items():
        declared = {name.removesuffix("-or-later") for name in re.findall(r"[\w.-]+", component.license)}
        for name in referred_licenses(text) | declared:
            if (COMMON / name).is_file():  # other licences have their text in the statement
                (folder / "common-licenses").mkdir(exist_ok=True)
                shutil.copyfile(COMMON / name, folder / "common-licenses" / name)
        name = component.name.replace(" ", "-").lower()
        (folder / f"{name}.txt").write_text(text.replace(f"{COMMON}/", "common-licenses/"))
