"""The redaction pipeline: what must go, what must stay, and what holds for every text."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aep_relay.protocol.redaction import Redactor, assignments

S = "[REDACTED:secret]"
P = "[REDACTED:pii]"
BODY = "MIIEpAIBAAKCAQEA7xGq0sFzPmyWBxl2M1XbFO0cTzEnyHnU3T1n4n7wq9y8b6Hc"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

REDACT = Redactor()

PEM: list[tuple[str, str]] = [
    (f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}\n-----END RSA PRIVATE KEY-----\n", f"{S}\n"),
    (f"key: -----BEGIN PRIVATE KEY-----\\n{BODY}\\nabcd==\\n-----END PRIVATE KEY-----\\n.", f"key: {S}\\n."),
    (
        f'{{"k":"-----BEGIN EC PRIVATE KEY-----\\\\n{BODY}\\\\n-----END EC PRIVATE KEY-----"}}',
        f'{{"k":"{S}"}}',
    ),
    (f"a -----BEGIN CERTIFICATE-----\r\n{BODY}\r\n-----END CERTIFICATE-----\r\nb", f"a {S}\r\nb"),
    ("-----BEGIN PGP MESSAGE-----\nVersion: 1\n\nhQEMA\n=abcd\n-----END PGP MESSAGE-----", S),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXkt", S),
    (f"log: -----BEGIN ENCRYPTED PRIVATE KEY-----\n{BODY}\n[1200 bytes cut]\nmore", f"log: {S}"),
    (f"-----BEGIN PRIVATE KEY----- {BODY} {BODY} -----END PRIVATE KEY----- done", f"{S} done"),
    (f"…\n{BODY}\n{BODY}\nab==\n-----END RSA PRIVATE KEY-----\nrest", f"…\n{S}\nrest"),
    (f"see\\n{BODY}\\nab==\\n-----END RSA PRIVATE KEY-----\\nrest", f"{S}\\nrest"),
    (f"it was {BODY} {BODY} -----END PRIVATE KEY-----", f"it was {S}"),
    (f"-----BEGIN A-----\n{BODY}\n-----BEGIN B-----\n{BODY}\n-----END B-----\nend", f"{S}\nend"),
    ("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nAAAA\n---- END SSH2 ENCRYPTED PRIVATE KEY ----", S),
    (f"> -----BEGIN X509 CRL-----\n> {BODY}\n> -----END X509 CRL-----", f"> {S}"),
]

TOKENS: list[tuple[str, str]] = [
    ("id AKIAIOSFODNN7EXAMPLE.", f"id {S}."),
    ("AKIAIOSFODNN7EXAMPLEAKIAIOSFODNN7EXAMPLE", S),
    ("x_AKIAIOSFODNN7EXAMPLE_y", f"x_{S}_y"),
    ("(ASIAIOSFODNN7EXAMPLE)", f"({S})"),
    (f"got {JWT}, then", f"got {S}, then"),
    ("cut eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOi", f"cut {S}"),
    ("jwe eyJhbGciOiJkaXIifQ..iv_iv_iv.cipher.tag!", f"jwe {S}!"),
    (f"https://x.test/cb#id={JWT}&state=1", f"https://x.test/cb#id={S}&state=1"),
    ("git clone with ghp_abcdefghijklmnopqrstuvwxyz0123456789", f"git clone with {S}"),
    ("xoxb-123456789012-abcdefABCDEF", S),
    ("use sk-ant-api03-abcdefghijABCDEFGHIJ0123456789 here", f"use {S} here"),
]

AUTHORIZATION: list[tuple[str, str]] = [
    ("Authorization: Bearer abc123def456", f"Authorization: Bearer {S}"),
    ("AUTHORIZATION: BEARER ABC123DEF456", f"AUTHORIZATION: BEARER {S}"),
    ("a bearer\nbearer abc123.def", f"a bearer\nbearer {S}"),
    ("bEaReR abc123.def", f"bEaReR {S}"),
    ("authorization: bearer swordfish", f"authorization: bearer {S}"),
    ('{"Authorization":"Bearer swordfish","x":1}', f'{{"Authorization":"Bearer {S}","x":1}}'),
    (
        '"{\\"authorization\\":\\"Bearer swordfish\\",\\"x\\":1}"',
        f'"{{\\"authorization\\":\\"Bearer {S}\\",\\"x\\":1}}"',
    ),
    (
        "curl -H 'Authorization: Basic dXNlcjpwYXNz' https://x.test",
        f"curl -H 'Authorization: Basic {S}' https://x.test",
    ),
    ("['authorization', 'Bearer swordfish']", f"['authorization', 'Bearer {S}']"),
    ("with Bearer  0123456789abcdef, and", f"with Bearer  {S}, and"),
    ("Bearer 'Zm9vYmFy/+0='", f"Bearer '{S}'"),
    (f"Bearer {JWT}\nnext", f"Bearer {S}\nnext"),
    ("Bearer%20abc123def", f"Bearer%20{S}"),
    ("bearer abcdefghijklmnopqrstuvwxyzabcdefghijklmn", f"bearer {S}"),
    ("postgres://app:hunter2@db.test:5432/app", f"postgres://app:{S}@db.test:5432/app"),
    ("redis://:p%40ss@cache/0", f"redis://:{S}@cache/0"),
    ("https://x-access-token:abc123@git.test/a/b.git", f"https://x-access-token:{S}@git.test/a/b.git"),
]

ASSIGNMENTS: list[tuple[str, str]] = [
    ("password=\nPASSWD : 'hunter two'", f"password=\nPASSWD : '{S}'"),
    ("password=\r\n  hunter2", f"password=\r\n  {S}"),
    ("password=hunter2", f"password={S}"),
    ("PASSWORD = hunter2 # comment", f"PASSWORD = {S} # comment"),
    ("passwd:hunter2", f"passwd:{S}"),
    ('"password": "hunter two", "user": "bob"', f'"password": "{S}", "user": "bob"'),
    ("{'api_key': 'abc', 'n': 1}", f"{{'api_key': '{S}', 'n': 1}}"),
    ("{password:hunter2,user:bob}", f"{{password:{S},user:bob}}"),
    ('{"token":12345}', f'{{"token":{S}}}'),
    ('{\\"secret\\":\\"a\\\\\\"b\\",\\"c\\":1}', f'{{\\"secret\\":\\"{S}\\",\\"c\\":1}}'),
    ('password="a\\"b" x', f'password="{S}" x'),
    ("GET /x?token=abc&user=bob HTTP/1.1", f"GET /x?token={S}&user=bob HTTP/1.1"),
    ("https://x.test/?a=1&api_key=abc#frag", f"https://x.test/?a=1&api_key={S}"),
    ("user=bob&password=a%26b&next=%2F", f"user=bob&password={S}&next=%2F"),
    ("user[password]=hunter2&user[name]=bob", f"user[password]={S}&user[name]=bob"),
    ("url?token%3Dabc123%26user%3Dbob", f"url?token%3D{S}%26user%3Dbob"),
    ("?token=abc\\u0026user=bob", f"?token={S}\\u0026user=bob"),
    ("X-Api-Key: abc123", f"X-Api-Key: {S}"),
    ("X-Auth-Token : abc123\r\nHost: x", f"X-Auth-Token : {S}\r\nHost: x"),
    ("Cookie: access_token=abc; path=/", f"Cookie: access_token={S}; path=/"),
    ("Cookie: access_token=abc;path=/", f"Cookie: access_token={S};path=/"),
    ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", f"export AWS_SECRET_ACCESS_KEY={S}"),
    ("Server=db;Uid=sa;Pwd=a,b;Database=x", f"Server=db;Uid=sa;Pwd={S};Database=x"),
    ("DB_PASS=hunter2", f"DB_PASS={S}"),
    ("curl -d password=abc&def", f"curl -d password={S}"),
    ('["--token=abc","--verbose"]', f'["--token={S}","--verbose"]'),
    ('["--token","abc","--verbose"]', f'["--token","{S}","--verbose"]'),
    ("login --password hunter2 --user bob", f"login --password {S} --user bob"),
    ("token: Bearer hunter", f"token: {S}"),
    ("token := `a b c`;", f"token := `{S}`;"),
    ("api-key => 'abc',", f"api-key => '{S}',"),
    ('const token: string = "abc"', f'const token: {S} = "{S}"'),
    ('token: Optional[str] = "abc"', f'token: {S}] = "{S}"'),
    ('def f(token: str, password: str = "x") -> None:', f'def f(token: {S}, password: {S} = "{S}") -> None:'),
    ("secret_key_base: abc", f"secret_key_base: {S}"),
    ("//registry.example/:_authToken=abc", f"//registry.example/:_authToken={S}"),
    ("**Password:** hunter2", f"**Password:** {S}"),
    ("**Password**: hunter2", f"**Password**: {S}"),
    ("password: |\n  hunter2\nuser: bob", f"password: {S}\nuser: bob"),
    ("token: !!str abc", f"token: {S}"),
    ("<wsse:Password Type='x'>hunter two</wsse:Password>", f"<wsse:Password Type='x'>{S}</wsse:Password>"),
    ("<token><![CDATA[a b]]></token>", f"<token><![CDATA[{S}</token>"),
    ("<apiKey>\n abc\n</apiKey>", f"<apiKey>{S}</apiKey>"),
    ("<password>hunter2 cut", f"<password>{S}"),
    ("<password>hunter two</password>", f"<password>{S}</password>"),
    ('<add key="ApiKey" value="abc" />', f'<add key="ApiKey" value="{S}" />'),
    ('{"name": "DB_PASSWORD", "value": "x y"}', f'{{"name": "DB_PASSWORD", "value": "{S}"}}'),
    ("- name: API_TOKEN\n  value: abc", f"- name: API_TOKEN\n  value: {S}"),
    ('"secret": {"a": "}", "b": [1]}, "c": 2', f'"secret": {S}, "c": 2'),
    ('"secret": ["a", "b"], "c": 2', f'"secret": {S}, "c": 2'),
    ('"password":"cut off in the mid', f'"password":"{S}'),
    ("password: “my pass”, ok", f"password: “{S}”, ok"),
    ("&quot;token&quot;:&quot;abc def&quot;}", f"&quot;token&quot;:&quot;{S}&quot;}}"),
    ("password\uff1ahunter2", f"password\uff1a{S}"),
    ("password=päßwörd→x y", f"password={S} y"),
    ("(token=abc)", f"(token={S})"),
    ("f(password='a', user='b')", f"f(password='{S}', user='b')"),
    ('password=\\"abc\\"', f'password=\\"{S}\\"'),
    (f"password={S}hunter2", f"password={S}"),
    ("password = 'a' 'b'", f"password = '{S}' 'b'"),
    ("b'token': b'abc'", f"b'token': b'{S}'"),
    ('password="abc"def ghi', f"password={S} ghi"),
]

HOMES: list[tuple[str, str]] = [
    ("/home/bob/src/x.py", "~/src/x.py"),
    ("cd /home/bob && ls", "cd ~ && ls"),
    ("in /home/bob.", "in ~."),
    ("'/home/j.doe-2/x'", "'~/x'"),
    ("/Users/Ann/Library", "~/Library"),
    ("C:\\Users\\bob\\AppData", "~\\AppData"),
    ('"C:\\\\Users\\\\bob\\\\AppData"', '"~\\\\AppData"'),
    ("c:/Users/bob/x", "~/x"),
    ("C:\\Users\\John Smith\\x", "~\\x"),
    ("open C:\\Users\\bob now", "open ~ now"),
    ("C:\\Documents and Settings\\bob\\x", "~\\x"),
    ("file:///C:/Users/bob/x", "file:///~/x"),
    ("file:///home/bob/x", "file://~/x"),
    ("\\\\wsl$\\Ubuntu\\home\\bob\\x", "~\\x"),
    ("/mnt/c/Users/bob/x", "~/x"),
    ("/c/Users/bob/x", "~/x"),
    ("/cygdrive/c/Users/bob/x", "~/x"),
    ("/var/home/bob/x", "~/x"),
    ("/root/.ssh/config", "~/.ssh/config"),
    ("ls /root", "ls ~"),
    ("/var/root/x and /private/var/root/x", "~/x and ~/x"),
    ("PATH=/usr/bin:/home/bob/bin:/root/bin", "PATH=/usr/bin:~/bin:~/bin"),
    ("gcc -I/home/bob/include", "gcc -I~/include"),
    ("\x1b[32m/home/bob/x\x1b[0m", "\x1b[32m~/x\x1b[0m"),
    ("a\\n/home/bob/x", "a\\n~/x"),
    ('"\\/home\\/bob\\/x"', '"~\\/x"'),
    ("vscode%3A=%2Fhome%2Fbob%2Fx", "vscode%3A=~%2Fx"),
    ("/home/müller/x", "~/x"),
    ("ssh://host/home/bob/repo", "ssh://host~/repo"),
    ("host:/home/bob/x", "host:~/x"),
    ("路径/home/bob/x", "路径~/x"),
]

PERSONAL: list[tuple[str, str]] = [
    ("mail bob@example.com.", f"mail {P}."),
    ("<Bob.O'Hara+x@mail.example.co.uk>", f"<{P}>"),
    ("mailto:bob@example.com?subject=x", f"mailto:{P}?subject=x"),
    ("?u=bob%40example.com&x=1", f"?u={P}&x=1"),
    ("jürgen@example.de", P),
    ("bob@münchen.de", P),
    ('"bob smith"@example.com', P),
    ("scp bob@build.example.com:/srv/x", f"scp {P}:/srv/x"),
    ("a@b.co,c@d.co", f"{P},{P}"),
    ("call +49 170 1234567 now", f"call {P} now"),
    ("+1 (555) 123-4567", P),
    ("tel:+15551234567", f"tel:{P}"),
    ("555-123-4567", P),
    ("(555) 123-4567 ext. 12", P),
    ("555.123.4567", P),
    ("1-800-555-0199", P),
    ("Call me at 555 123 4567!", f"Call me at {P}!"),
    ('"phone": "5551234567"', f'"phone": "{P}"'),
    ("phone_number=555 1234", f"phone_number={P}"),
    ("0170 1234567", P),
    ("030/123 45 67", P),
    ("020 7183 8750", P),
    ("06 12 34 56 78", P),
    ("0049 170 1234567", P),
    ("\\n555-123-4567\\n", f"\\n{P}\\n"),
    ("+44\u00a020\u00a07183\u00a08750", P),
]

HIDDEN = PEM + TOKENS + AUTHORIZATION + ASSIGNMENTS + HOMES + PERSONAL

UNTOUCHED = [
    "",
    "reading the registry",
    "the bearer of bad news",
    "The bearer, however, left.",
    "a standard bearer",
    "Bearer token authentication is required",
    "BEARER TOKEN REQUIRED",
    "use bearer tokens, not cookies",
    "bearer token-based auth and/or OAuth2",
    "Bearer JWTs are accepted",
    "Authorization: Bearer <token>",
    "<token></token> and <token> </token>",
    "bearer (see RFC 6750)",
    "the bearer - a tall man - spoke",
    "forget your password? Click here",
    "the secret of good tests",
    "token budget is 4096 tokens",
    '"gen_ai.usage.input_tokens": 142, "max_tokens": 4096',
    "tokens=512 tokenizer=bpe",
    "token_count: 12",
    "the --token flag is required",
    "pass --password or set it",
    "secretary: Ann",
    "passwordless: yes",
    "api keys are rotated monthly",
    "PWD=/tmp",
    "pass: 12, fail: 0",
    "password=",
    'password=""',
    "AKIA",
    "AKIAIOSFODNN7EXAMPL",
    "akiaiosfodnn7example",
    "eyJ is how base64 of JSON starts",
    "eyJpZCI6MX0= is a cursor",
    "-----BEGIN-----",
    "----- BEGIN LOG -----",
    "--- a/x.py\n+++ b/x.py",
    "task-aaaaaaaaaaaaaaaaaaaaaaaa",
    "a3f9c2d1e8b7a6f5a3f9c2d1e8b7a6f5",
    "~bob/x and ~/x and $HOME/x",
    "%USERPROFILE%\\x",
    "/usr/local/bin/python",
    "/home",
    "/home/",
    "/home/$USER/x",
    "/home/<user>/x",
    "/home/*/x",
    "src/home/index.js",
    "https://example.com/home/dashboard",
    "GET /users/42",
    "/Users/Shared/x",
    "C:\\Users\\Public\\x",
    "C:\\Windows\\System32",
    "/rootfs and /root-cause",
    "chroot/root/x",
    "./root",
    "react@18.2.0",
    "next@13.0.0-canary.abc",
    "@types/node@20.1.2",
    "icon@2x.png",
    "git@github.com:org/repo.git",
    "user@1000.service",
    "user@localhost",
    "@app.route",
    "a @ b.c",
    "2026-07-03T10:14:00.000Z",
    "2026-07-03 10:14:00 +0200",
    "03.07.2026 10:15",
    "1719999999 1719999999000",
    "192.168.100.200:8080",
    "10.0.0.1 and 127.0.0.1",
    "123e4567-e89b-12d3-a456-426614174000",
    "123e4567-0456-1234-5678-426614174000",
    "v1.234.567.8901",
    "978-3-16-148410-0",
    "4111 1111 1111 1111",
    "512 256 1024",
    "exit code 137 after 1234567 ms",
    "@@ -120,7 +1200,40 @@",
    "1,234,567.89",
    "0x7fff5fbff8c0",
    "line 12:345",
    "https://example.com/orders/555-123-4567",
    "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    f"{S} and {P}",
    f"{S}: x, {S}=y",
    "日本語のテキスト、絵文字 🎉 も",
    "ENOSPC: no space left on device, write 'build/output.log'",
    "Permission requested: Bash — rm -rf build/",
]


@pytest.mark.parametrize(("text", "expected"), HIDDEN)
def test_hides(text: str, expected: str) -> None:
    assert REDACT(text) == expected


@pytest.mark.parametrize("text", UNTOUCHED)
def test_leaves_untouched(text: str) -> None:
    assert REDACT(text) is text


def test_the_tables_are_large_and_distinct() -> None:
    assert len({text for text, _ in HIDDEN}) == len(HIDDEN) >= 60
    assert len(set(UNTOUCHED)) == len(UNTOUCHED) >= 60


@pytest.mark.parametrize("text", [expected for _, expected in HIDDEN])
def test_what_is_redacted_stays_as_it_is(text: str) -> None:
    assert REDACT(text) is text


CUT_OFF = [(text, expected) for text, expected in HIDDEN if REDACT(f"{text}\n") != f"{expected}\n"]
"""Secrets without an end, which hide all that follows."""


def test_what_is_cut_off_hides_all_that_follows() -> None:
    assert 0 < len(CUT_OFF) < 10
    for text, expected in CUT_OFF:
        assert REDACT(f"{text}\nand more").startswith(expected)


@pytest.mark.parametrize(("text", "expected"), [row for row in HIDDEN if row not in CUT_OFF])
def test_hides_within_other_text(text: str, expected: str) -> None:
    assert REDACT(f"reading it:\n{text}\nand then no more") == f"reading it:\n{expected}\nand then no more"


@pytest.mark.parametrize("text", UNTOUCHED)
def test_clean_text_stays_clean_within_other_text(text: str) -> None:
    around = f"reading it: {text} \nand then no more"
    if text.endswith("="):
        return
    assert REDACT(around) == around


PIECES = [
    *(text for text, _ in HIDDEN),
    *UNTOUCHED,
    *("password", "token", "Secret", "api_key", "-----BEGIN KEY-----", "-----END KEY-----", "AKIA", "Bearer", "eyJ"),
    *("authorization", "--token", "<token>", "</token>", "://", "/home/", "/Users/", "C:\\Users\\", "/root", "phone"),
    *("AKIAIOSFODNN7EXAMPLE", "bob@example.com", "555-123-4567", "+1 555 123 4567", "/home/bob", "hunter2", "5551234"),
    *("=", ":", "==", "=>", " ", "  ", "\n", "\r\n", "\\n", "\\", '"', "'", "`", '\\"', '"""', "&", ",", ";", "@", "%"),
    *("[", "]", "{", "}", "(", ")", "<", ">", "|", "!", "*", "**", "_", "-", "--", "~", ".", "/", "+", "?", "#", "$"),
    *("&quot;", "%22", "%3D", "%40", "\\u0026", "“", "”", "\u00a0", "\uff1a", "é", "日", "\ud800", "\x00", "\x1b[0m"),
    *("ÿ", "÷", "🎉"),
    *("x", "1", "a1", "value", "pwd", "call", "git", S, P, "[REDACTED:", "REDACTED:pii]"),
]  # fmt: skip

mixtures = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join)
REDACTORS = (
    REDACT,
    Redactor(pii=False),
    Redactor(
        secret_names=["DB_CONN", "x", "é"], secret_values=["hunter2", "correct horse", "wörd", "home", "AKIA"]
    ),
)


@given(mixtures)
@pytest.mark.parametrize("redact", REDACTORS, ids=["default", "without-pii", "with-lists"])
def test_redacting_twice_changes_nothing(redact: Redactor, text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(st.characters()))
def test_takes_any_text(text: str) -> None:
    assert isinstance(REDACT(text), str)


SECRET_TEXT = st.text(st.sampled_from("abcdefghjkmnpqrsuvwxyz"), min_size=8, max_size=20)
AROUND_SECRET = [
    "password={}",
    "PASSWD : '{}'",
    '{{"api_key": "{}", "n": 1}}',
    "https://x.test/?token={}&page=2",
    "Authorization: Bearer {}",
    "https://bob:{}@x.test/",
    "-----BEGIN KEY-----\n{}",
    "bearer {}0",
    "eyJ{}.{}.{}",
    "login --password {}",
    "MY_NAME={}",
]


@given(SECRET_TEXT, st.sampled_from(AROUND_SECRET), st.sampled_from(UNTOUCHED))
def test_no_secret_survives(secret: str, around: str, context: str) -> None:
    redact = Redactor(secret_names=["MY_NAME"])
    assume(secret not in context)
    assert secret not in redact(f"{context}\n{around.replace('{}', secret)}\n{context}")


@given(SECRET_TEXT, mixtures)
def test_no_listed_value_survives(secret: str, text: str) -> None:
    assert secret not in Redactor(secret_values=[secret])(f"{text}{secret}{text}")


def test_listed_names_in_their_assignments() -> None:
    redact = Redactor(secret_names=["DB_CONN", "x-foo", "", "a.b+c"])
    assert redact("export DB_CONN='a b' DB_CONNECT=1") == f"export DB_CONN='{S}' DB_CONNECT=1"
    assert redact('{"db_conn": 1, "n": 2}') == f'{{"db_conn": {S}, "n": 2}}'
    assert redact("X-Foo: bar") == f"X-Foo: {S}"
    assert redact("a.b+c=1 aXbXc=1") == f"a.b+c={S} aXbXc=1"
    assert redact("XDB_CONN=1") == "XDB_CONN=1"


def test_listed_values_in_every_spelling() -> None:
    redact = Redactor(secret_values=['a"b/c é', "p@ss w?rd", "", "p@ss w?rd and more"])
    for text in ('a"b/c é', 'a\\"b/c é', 'a\\"b/c \\u00e9', "p@ss w?rd", "p%40ss%20w%3Frd", "p%40ss+w%3Frd"):
        assert redact(f"({text})") == f"({S})"
    assert redact("(p@ss w?rd and more)") == f"({S})"
    assert redact("(p@ss)") == "(p@ss)"


def test_short_values_are_refused_without_being_quoted() -> None:
    with pytest.raises(ValueError, match="shorter than 4 characters") as refused:
        Redactor(secret_values=["xyz"])
    assert "xyz" not in str(refused.value)


def test_lists_too_long_to_search_for_are_refused() -> None:
    long = [f"{number:0100}" for number in range(2_000)]
    with pytest.raises(ValueError, match="too long"):
        Redactor(secret_values=long)
    with pytest.raises(ValueError, match="too long"):
        Redactor(secret_names=long)
    redact = Redactor(secret_names=long[:100], secret_values=long[100:900])
    assert redact(f"{long[99]}=x {long[899]} password=y") == f"{long[99]}={S} {S} password={S}"


def test_personal_data_can_be_left() -> None:
    text = "bob@example.com or 555-123-4567, password=x, /home/bob/x"
    assert Redactor(pii=False)(text) == f"bob@example.com or 555-123-4567, password={S}, ~/x"


HOSTILE = [
    *(
        "-----BEGIN A-----\n",
        "-----END A-----\n",
        "MIIEpAIB\n",
        "xAKIAIOSFODNN7EXAMPLE\n",
        "eyJaaaaaaa.",
        "eyJaaaaaa",
    ),
    *(
        "token",
        "token ",
        "token: ",
        "token=[",
        'token={"',
        "token='\\\"",
        "token=)))x",
        "--token ",
        "<token ",
        "token=",
    ),
    *(
        "\\",
        '\\"',
        '"',
        "'",
        "&a",
        "=",
        "[",
        "bearer ",
        "bearer aA1",
        "://a:b",
        "a:b@",
        "/home/x",
        "C:\\Users\\a b ",
    ),
    *(
        "a@",
        "a@b.",
        "a@b.c1.",
        '"a"@',
        "+1 2 ",
        "phone 1",
        "0123 45 ",
        "1",
        "1 ",
        "(5",
        "call ",
        "x=",
        "hunter",
    ),
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("start", ["", "token=", 'token="', "token={", "-----BEGIN A-----"])
def test_a_large_hostile_text_is_worked_through(unit: str, start: str) -> None:
    redact = REDACTORS[-1]
    once = redact(start + unit * (30_000 // len(unit)))
    assert redact(once) == once
    assert once.startswith(S) or start != "-----BEGIN A-----"


@pytest.mark.parametrize(
    "unit",
    [
        *HOSTILE,
        *(
            "--token&quot;,-",
            "--token%22,-",
            "--token”,-",
            "--token -",
            '--token",-',
            '--token "-',
            "--token '- ",
        ),
        *(
            "--token \"- --token '- --token `- ",
            '--token "-\\"',
            "--token and ",
            "token=\n--a",
            "--token bearer -",
        ),
    ],
)
def test_what_is_read_in_search_of_an_end_is_not_read_again(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [0]
    value_of = assignments._value

    def counted(text: bytes, position: int) -> tuple[int, int, int]:
        found = value_of(text, position)
        read[0] += found[2] - position
        return found

    monkeypatch.setattr(assignments, "_value", counted)
    text = unit * (20_000 // len(unit.encode()))
    REDACT(text)
    assert read[0] <= 4 * len(text.encode())


def test_a_megabyte_is_worked_through() -> None:
    unit = "password=hunter2, and then /home/bob/x of bob@example.com (555-123-4567) "
    times = 1_000_000 // len(unit)
    assert REDACT(unit * times) == REDACT(unit) * times
