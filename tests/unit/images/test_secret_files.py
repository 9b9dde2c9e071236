"""Files that look like secrets: by name, by content, and those that only resemble them. All values are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.images.secret_files import secret_file, secret_text

BLOCK = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 3


def pem(kind: str, headers: str = "") -> str:
    """A made-up key of a kind, in the form of RFC 7468."""
    return f"-----BEGIN {kind}-----\n{headers}{BLOCK}-----END {kind}-----\n"


ESCAPED = pem("PRIVATE KEY").replace("\n", "\\n")
LEGACY = pem("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\n")
KUBE = "kind: Config\nusers:\n- user:\n    "

NAMED = [
    ("home/.ssh/id_ed25519", "by its name a private key of SSH"),
    ("id_rsa", "by its name a private key of SSH"),
    ("etc/ssh_host_rsa_key", "by its name a host key of SSH"),
    ("key.ppk", "by its name a private key of PuTTY"),
    ("certs/site.p12", "by its name a store of keys"),
    (".netrc", "by its name logins of netrc"),
    ("x/.git-credentials", "by its name logins of Git"),
    ("x/.aws/credentials", "by its name credentials of AWS"),
    (".azure/msal_token_cache.json", "by its name credentials of Azure"),
    ("gcloud/application_default_credentials.json", "by its name credentials of Google Cloud"),
    (".kube/config", "by its name a configuration of kubectl"),
    ("prod.kubeconfig", "by its name a configuration of kubectl"),
    (".docker/config.json", "by its name logins of Docker"),
    (".pgpass", "by its name credentials"),
    (".cache/huggingface/token", "by its name a token of Hugging Face"),
    ("infra/terraform.tfstate", "by its name a state of Terraform"),
]
CONTENT = [
    ("a.pem", pem("PRIVATE KEY"), "line 1: a private key"),
    ("b.txt", "# key\n\n" + pem("OPENSSH PRIVATE KEY"), "line 3: a private key"),
    ("c.pem", LEGACY, "line 1: a private key"),
    ("d.asc", pem("PGP PRIVATE KEY BLOCK", "\n"), "line 1: a private key"),
    (
        "e.json",
        f'{{"type": "service_account",\n"private_key": "{ESCAPED}"}}',
        "line 2: a private key",
    ),
    ("f.py", f'KEY = """{pem("EC PRIVATE KEY")}"""\n', "line 1: a private key"),
    ("g", "PuTTY-User-Key-File-3: ssh-ed25519\n", "line 1: a private key of PuTTY"),
    ("credentials", f"[a]\naws_secret_access_key = {'A1b2' * 10}\n", "line 2: a secret key of AWS"),
    ("run.sh", f"export AWS_SECRET_ACCESS_KEY={'A1b2' * 10}\n", "line 1: a secret key of AWS"),
    ("logins", "\n  machine example.org login me password abc\n", "line 2: a login of netrc"),
    ("store", "https://me:abc@example.org\n", "line 1: a login in an address"),
    (
        "pip.conf",
        "[global]\nindex-url = https://me:abc@example.org/s\n",
        "line 2: a login in an address",
    ),
    (
        "a.yml",
        f"{KUBE}client-key-data: {'QUJD' * 20}\n",
        "line 4: a key of a configuration of kubectl",
    ),
    ("b.yml", f"{KUBE}token: {'abcd.' * 8}\n", "line 4: a token of a configuration of kubectl"),
    (
        "auth.json",
        '{"auths": {"r.example": {"auth": "bWU6YWJj"}}}',
        "line 1: a login of a registry",
    ),
    (".npmrc", f"//r.example/:_authToken={'abcd' * 4}", "line 1: a token of npm"),
    (".env", "# x\nDEBUG=\nPASSWORD=x1\n", "line 3: a value in a file of environment variables"),
    ("prod.env", "export TOKEN=abc\n", "line 1: a value in a file of environment variables"),
    (".env.local", "A=1", "line 1: a value in a file of environment variables"),
    ("main.py", f"x = 1\nt = 'ghp_{'a1B2' * 9}'\n", "line 2: a token of GitHub"),
    ("fine.py", f"github_pat_{'a1B2_' * 10}", "line 1: a token of GitHub"),
    ("ci.yml", f"t: glpat-{'a1B2-' * 4}", "line 1: a token of GitLab"),
    ("hub.txt", f"hf_{'aBcD' * 9}", "line 1: a token of Hugging Face"),
    ("bot.txt", f"xoxb-1234567-{'aBcD' * 5}", "line 1: a token of Slack"),
    ("age.txt", f"AGE-SECRET-KEY-1{'Q' * 58}", "line 1: a private key of age"),
    ("weights.bin", "\0" * 5000 + f"AIza{'a-B_c' * 7}", "line 1: a key of Google"),
]
HARMLESS = [
    ("id_rsa.pub", "ssh-rsa AAAA"),
    ("cert.pem", pem("CERTIFICATE")),
    ("public.pem", pem("PUBLIC KEY")),
    ("check.py", "if text.startswith('-----BEGIN PRIVATE KEY-----'):\n    raise ValueError\n"),
    ("manual.md", "Write `machine HOST login USER password PASSWORD` as the manual says.\n"),
    ("address.md", "https://USER:<PASSWORD>@example.org\n"),
    ("pip.conf", "[global]\nindex-url = https://example.org/simple\n"),
    (".env", "DEBUG=\n# PASSWORD=x\nEMPTY=''\n"),
    (".env.example", "PASSWORD=changeme\n"),
    ("example.env", "PASSWORD=changeme\n"),
    ("deploy.yml", "kind: Deployment\ntoken: aaaaaaaaaaaaaaaaaaaaaaaa\n"),
    ("readme.md", "tokens begin with ghp_ or hf_\n"),
    ("config.json", '{"auth": "basic"}'),
    ("empty", ""),
    ("environment.yml", "name: x\n"),
]


@pytest.mark.parametrize(("path", "form"), NAMED, ids=[path for path, _ in NAMED])
def test_secret_is_known_by_its_name(tmp_path: Path, path: str, form: str) -> None:
    (tmp_path / "file").write_text("x")
    secret = secret_file(path, tmp_path / "file")
    assert secret is not None
    assert secret.text().startswith(form)


@pytest.mark.parametrize(("path", "text", "form"), CONTENT, ids=[row[0] for row in CONTENT])
def test_secret_is_known_by_its_content(tmp_path: Path, path: str, text: str, form: str) -> None:
    (tmp_path / "file").write_text(text)
    secret = secret_file(path, tmp_path / "file")
    assert secret is not None
    assert secret.text() == form


@pytest.mark.parametrize(("path", "text"), HARMLESS, ids=[row[0] for row in HARMLESS])
def test_harmless_file_is_copied(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert secret_file(path, tmp_path / "file") is None


def test_text_of_a_declaration() -> None:
    assert secret_text(f"hf_{'aBcD' * 9}") == "a token of Hugging Face"
    assert secret_text("small") is None


def test_secret_beyond_the_first_part_of_a_large_file_has_its_line(tmp_path: Path) -> None:
    lines = ("x" * 1023 + "\n") * (16 << 10)
    for extra in (0, 100):  # across the edge of two parts, and after it
        (tmp_path / "big").write_text(f"{lines[: len(lines) - 50 + extra]}\nhf_{'aBcD' * 9}\n")
        secret = secret_file("big", tmp_path / "big")
        assert secret is not None
        wanted = (tmp_path / "big").read_bytes().partition(b"hf_")[0].count(b"\n") + 1
        assert secret.line == wanted
