"""Where a gateway listens, and what must be so before it does."""

from __future__ import annotations

import argparse
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from backends.config import Config, load_config
from backends.errors import DllmError
from backends.gateway.keys import KeyFile
from backends.gateway.listen_settings import (
    ListenSettings,
    Renewal,
    add_arguments,
    listen_settings_in,
    listen_settings_of,
    require_address,
    require_safe,
    server_context,
)
from backends.gateway.server import Listener, Server
from backends.paths import user_paths


def certify(folder: Path, *, password: bytes = b"", number: int = 1) -> ListenSettings:
    """A certificate for ``localhost`` with its private key, as files."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(serial_number=number)
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(private, hashes.SHA256())
    )
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    raw = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(raw)
    files[1].chmod(0o600)
    return ListenSettings(certificate=str(files[0]), private_key=str(files[1]))


def test_arguments_say_all_that_is_unusual() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert ListenSettings().argv() == ()
    everything = ListenSettings(
        host="::1", certificate="c", private_key="p", keys="k", body_bytes_max=7
    )
    for access in (ListenSettings(), everything):
        assert listen_settings_in(parser.parse_args(access.argv())) == access


@pytest.mark.parametrize(
    ("access", "hosts", "url"),
    [
        (ListenSettings(), ("127.0.0.1",), "http://127.0.0.1:8/v1"),
        (ListenSettings(host="0.0.0.0"), ("0.0.0.0",), "http://127.0.0.1:8/v1"),
        (ListenSettings(host="::"), ("127.0.0.1", "::"), "http://127.0.0.1:8/v1"),
        (
            ListenSettings(host="10.1.2.3"),
            ("127.0.0.1", "10.1.2.3"),
            "http://10.1.2.3:8/v1",
        ),
        (
            ListenSettings(host="fd00::1"),
            ("127.0.0.1", "fd00::1"),
            "http://[fd00::1]:8/v1",
        ),
        (ListenSettings(certificate="c"), ("127.0.0.1",), "https://127.0.0.1:8/v1"),
    ],
)
def test_where_it_listens(
    access: ListenSettings, hosts: tuple[str, ...], url: str
) -> None:
    assert access.hosts == hosts
    assert access.url(8) == url


def test_beyond_the_loopback_a_key_is_demanded(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    require_safe(ListenSettings(keys=str(keys)))
    require_safe(ListenSettings(host="::1", keys=str(keys)))
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        with pytest.raises(DllmError, match="keys add NAME"):
            require_safe(ListenSettings(host=host, keys=str(keys)))
    KeyFile(keys).add("laptop")
    require_safe(ListenSettings(host="0.0.0.0", keys=str(keys)))


def test_an_address_that_is_none_of_ours() -> None:
    for access in (ListenSettings(), ListenSettings(host="0.0.0.0")):
        require_address(access)
    with pytest.raises(DllmError, match=r"cannot listen at 203\.0\.113\.9"):
        require_address(ListenSettings(host="203.0.113.9"))


def test_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    paths = user_paths()
    paths.config_dir.mkdir()
    paths.config_file.write_text('api_host = "example"')
    with pytest.raises(DllmError, match="line 1: api_host cannot be 'example'"):
        load_config(paths)
    paths.config_file.write_text('api_host = "999.1.1.1"')
    with pytest.raises(DllmError, match=r"line 1: api_host cannot be '999\.1\.1\.1'"):
        load_config(paths)
    config = Config(api_certificate="tls/c.pem", api_private_key="~/k.pem")
    access = listen_settings_of(config, paths)
    assert access.certificate == str(paths.config_dir / "tls" / "c.pem")
    assert access.private_key == str(Path.home() / "k.pem")
    assert access.body_bytes_max == 16 << 20


def test_files_of_tls_that_cannot_be_used(tmp_path: Path) -> None:
    good = certify(tmp_path)
    require_safe(good)
    with pytest.raises(DllmError, match="only one is set"):
        require_safe(ListenSettings(certificate=good.certificate))
    key = Path(good.private_key)
    key.chmod(0o640)
    with pytest.raises(DllmError, match="chmod 600"):
        require_safe(good)
    key.unlink()
    with pytest.raises(DllmError, match="No such file"):
        require_safe(good)
    other = tmp_path / "other"
    other.mkdir()
    mixed = ListenSettings(
        certificate=good.certificate, private_key=certify(other).private_key
    )
    with pytest.raises(DllmError, match="mismatch"):
        require_safe(mixed)
    with pytest.raises(DllmError, match="without a password"):
        require_safe(certify(tmp_path, password=b"secret"))


@asynccontextmanager
async def standing(access: ListenSettings) -> AsyncIterator[int]:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text="here")

    listener = Listener(Server(answer), access, 0)
    await listener.open()
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        await listener.close()


@pytest.mark.parametrize("host", ["203.0.113.9", "::"])
async def test_an_address_that_is_away_takes_the_api_from_nobody(host: str) -> None:
    """Nor does every address of IPv6: none of IPv4 is among them."""
    async with (
        standing(ListenSettings(host=host)) as port,
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert await answer.text() == "here"


async def test_tls_with_a_certificate_and_with_the_next_one(tmp_path: Path) -> None:
    access = certify(tmp_path)
    trusting = ssl.create_default_context(cafile=access.certificate)
    async with standing(access) as port, aiohttp.ClientSession() as client:
        url = f"https://localhost:{port}/"
        async with client.get(url, ssl=trusting) as answer:
            assert await answer.text() == "here"
        with pytest.raises(aiohttp.ClientError):
            await client.get(f"http://localhost:{port}/")


def test_a_certificate_is_renewed_only_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = certify(tmp_path)
    files = access.certificate, access.private_key
    context = server_context(*files)
    renewal = Renewal(context, *files)
    renewal.look()
    assert not caplog.records
    key = Path(access.private_key).read_bytes()
    certify(tmp_path, number=2)
    whole = Path(access.private_key).read_bytes()
    Path(access.private_key).write_bytes(key)
    renewal.look()
    assert "stays as it was" in caplog.text
    assert serial(context) == 1
    Path(access.private_key).write_bytes(whole)
    renewal.look()
    assert serial(context) == 2


def serial(context: ssl.SSLContext) -> int:
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(there, here, server_side=True)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    client = asking.wrap_bio(here, there)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    raw = client.getpeercert(binary_form=True)
    assert raw
    return x509.load_der_x509_certificate(raw).serial_number
