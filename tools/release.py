"""What a release is beside its wheels: checksums, an SBOM, notes (`make release`, ADR 25). Publishes nothing.

It refuses a tree with changes that are not committed, a version that is not the same everywhere, and one whose section of the
changelog is missing or still says "unreleased".
"""

import argparse
import hashlib
import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def said(*command: str) -> str:
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def project(folder: str) -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def problems(version: str, changelog: str, status: str) -> list[str]:
    """What stands in the way of a release of this version."""
    found = []
    if status:
        found.append(f"there are changes that are not committed:\n{status}")
    heading = re.search(rf"^## {re.escape(version)}\b(.*)$", changelog, re.M)
    if heading is None:
        found.append(f"CHANGELOG.md has no section {version}")
    elif not re.fullmatch(r" \(\d{4}-\d\d-\d\d\)", heading[1]):
        found.append(f"CHANGELOG.md: {version} has{heading[1]}, expected its date, (2026-01-31)")
    for name in ("cuda13", "vllm"):
        plugin = project(f"plugins/{name}")
        if plugin["version"] != version or f"intarsia=={version}" not in plugin["dependencies"]:
            found.append(f"plugins/{name}/pyproject.toml is not of version {version}")
    return found


def notes(version: str, changelog: str) -> str:
    """The version's section of the changelog."""
    [section] = re.findall(
        rf"^## {re.escape(version)}\b.*?\n+(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    return f"# Intarsia {version}\n\n{section.strip()}\n"


def sbom(version: str, cuda: bool) -> str:
    """CycloneDX: what the binaries of the wheels contain, and not what pip installs beside them."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    part = ComponentType.LIBRARY
    apache = [LicenseExpression("Apache-2.0")]
    with_exception = [LicenseExpression("GPL-3.0-or-later WITH GCC-exception-3.1")]
    headers = (ROOT / "third_party/xla_ffi/README.md").read_text()
    inside = [
        Component(
            type=part,
            name="xla-ffi-headers",
            version=re.search(r"XLA's typed FFI ([\d.]+)", headers)[1],
            licenses=apache,
        ),
        Component(
            type=part,
            name="libstdc++",
            version=said("c++", "-dumpfullversion"),
            licenses=with_exception,
        ),
    ]
    if cuda:
        nvcc = said("/usr/local/cuda/bin/nvcc", "--version")
        cudart = re.search(r"release [\d.]+, V([\d.]+)", nvcc)[1]
        inside.append(Component(type=part, name="libcudart_static", version=cudart))
    bom = Bom(components=inside)
    bom.metadata.component = Component(
        type=part,
        name="intarsia",
        version=version,
        licenses=apache,
        description=project(".")["description"],
    )
    bom.register_dependency(bom.metadata.component, inside)
    writer = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return writer.output_as_string(indent=2) + "\n"


def checksums(folder: pathlib.Path) -> str:
    """As `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz", ".json"))
    rows = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    return "".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rehearse", action="store_true", help="name what is not ready, and go on")
    args = parser.parse_args()
    version = (ROOT / "python/intarsia/VERSION").read_text().strip()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if found := problems(version, changelog, said("git", "status", "--porcelain")):
        text = "not ready to be released:\n" + "\n".join(f"- {row}" for row in found)
        if not args.rehearse:
            raise SystemExit(text)
        print(text)
    cuda = any(args.folder.glob("intarsia_cuda13-*.whl"))
    (args.folder / f"intarsia-{version}.cdx.json").write_text(sbom(version, cuda))
    (args.folder / "NOTES.md").write_text(notes(version, changelog))
    (args.folder / "SHA256SUMS").write_text(checksums(args.folder))
    print(
        f"{args.folder} is ready; to publish it: twine upload {args.folder}/*.whl {args.folder}/*.tar.gz"
    )


if __name__ == "__main__":
    main()
