"""Artemis' own files of users beside a broker.xml: login.config and what it names."""

from pathlib import Path

import pytest

from orthia.config.errors import ConfigurationError
from orthia.config.exposure import exposure_warnings
from orthia.config.loader import load
from orthia.config.login_domains import (
    Answer,
    ControlFlag,
    GuestLoginModule,
    LoginDomain,
    LoginModule,
    who_lets_in,
)
from orthia.config.parts import Part
from orthia.config.rendering import render
from orthia.config.security_settings import CertificateLoginModule, PropertiesLoginModule
from orthia.config.settings import Settings
from tests.support.broker_xml import broker_xml

JAAS = "org.apache.activemq.artemis.spi.core.security.jaas."
PROPERTIES = f"""{JAAS}PropertiesLoginModule {{flag}}
    debug=false
    reload=true
    org.apache.activemq.jaas.properties.user="artemis-users.properties"
    org.apache.activemq.jaas.properties.role="artemis-roles.properties";
"""
GUEST = f"""{JAAS}GuestLoginModule {{flag}} // whoever is left
    org.apache.activemq.jaas.guest.user="nemo" /* of the
    crew */ org.apache.activemq.jaas.guest.role=crew;
"""
CERTIFICATE = f"""{JAAS}TextFileCertificateLoginModule {{flag}}
    org.apache.activemq.jaas.textfiledn.user="cert-users.properties"
    org.apache.activemq.jaas.textfiledn.role="cert-roles.properties";
"""
LDAP = """org.example.LDAPLoginModule {flag} connectionURL="ldap://h:1024" filter="(uid={{0}})";
"""


def domain(*modules: str, name: str = "activemq") -> str:
    """Return a domain of ``login.config``; a module is its text and its flag."""
    texts = (text.format(flag=flag) for text, flag in zip(modules[::2], modules[1::2], strict=True))
    return f"{name} {{\n{''.join(texts)}}};\n"


class Instance:
    """The folder of an Artemis."""

    def __init__(self, directory: Path) -> None:
        self.etc = directory / "etc"
        self.etc.mkdir()
        self.write("artemis-users.properties", "alice = s3cret\n")
        self.write("artemis-roles.properties", "amq = alice\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of ``etc``."""
        (self.etc / name).write_text(text)

    def load(self, core: str = "") -> Settings:
        """Return the settings of its broker.xml."""
        return load(broker_xml(self.etc, core))

    def refused(self, core: str = "") -> str:
        """Return why its broker.xml is refused."""
        with pytest.raises(ConfigurationError) as refused:
            self.load(core)
        return str(refused.value)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    """An instance with the files of one user."""
    return Instance(tmp_path)


def test_files_of_users_are_found_without_login_config(instance: Instance) -> None:
    """As `artemis create` would have named them there."""
    settings = instance.load()
    assert settings.properties_login_module == PropertiesLoginModule(
        instance.etc / "artemis-users.properties", instance.etc / "artemis-roles.properties"
    )
    assert settings.login_domain is not None
    assert settings.login_domain.modules == ((LoginModule.PROPERTIES, ControlFlag.REQUIRED),)


def test_they_are_found_in_etc_of_the_instance(instance: Instance, tmp_path: Path) -> None:
    """Where the broker.xml is elsewhere."""
    file = tmp_path / "conf" / "broker.xml"
    instance.load()
    file.parent.mkdir()
    (instance.etc / "broker.xml").rename(file)
    settings = load(file, system_properties={"artemis.instance": str(tmp_path)})
    assert settings.properties_login_module is not None
    assert settings.properties_login_module.user == instance.etc / "artemis-users.properties"
    assert load(file).properties_login_module is None


def test_whoever_looks_at_the_store_reads_no_files_of_users(instance: Instance) -> None:
    """One that is broken keeps nobody from the status of a pair."""
    instance.write("login.config", "activemq { broken")
    assert "login.config" in instance.refused()
    settings = load(instance.etc / "broker.xml", part=Part.STORE)
    assert settings.login_domain is None


def test_login_config_says_how_clients_log_in(instance: Instance) -> None:
    """What `artemis create --allow-anonymous` writes: users, and a guest for everybody else."""
    instance.write("login.config", domain(PROPERTIES, "sufficient", GUEST, "Sufficient"))
    (instance.etc / "artemis-users.properties").chmod(0o600)
    settings = instance.load(
        '<acceptors><acceptor name="a">tcp://0.0.0.0:61616</acceptor></acceptors>'
    )
    assert settings.login_domain == LoginDomain(
        instance.etc / "login.config",
        "activemq",
        (
            (LoginModule.PROPERTIES, ControlFlag.SUFFICIENT),
            (LoginModule.GUEST, ControlFlag.SUFFICIENT),
        ),
        GuestLoginModule("nemo", "crew"),
    )
    (exposed,) = exposure_warnings(settings)
    assert exposed.startswith("acceptor 'a' listens on 0.0.0.0 and ")
    assert exposed.endswith(" has guests: anybody who reaches it may do what role 'crew' may")
    shown = {one.path: one.value for one in render(settings)}
    assert shown["login.config/activemq/GuestLoginModule"] == "sufficient"
    assert shown["login.config/activemq/GuestLoginModule/user"] == "nemo"


def test_options_that_are_left_out_have_artemis_defaults(instance: Instance) -> None:
    """Files are not read again, and a directory may be named."""
    text = f"""activemq {{ {JAAS}PropertiesLoginModule required baseDir="${{artemis.instance}}/x"
      org.apache.activemq.jaas.properties.user=u
      org.apache.activemq.jaas.properties.role="r"; }};"""
    instance.write("login.config", text)
    directory = instance.etc.parent / "x"
    assert instance.load().properties_login_module == PropertiesLoginModule(
        directory / "u", directory / "r", reload=False
    )


def test_bootstrap_names_the_domains(instance: Instance) -> None:
    """Of several in one file; a client with a certificate has one of its own."""
    instance.write(
        "login.config",
        domain(LDAP, "required")
        + domain(PROPERTIES, "required", name="work")
        + domain(CERTIFICATE, "required", name="work-cert"),
    )
    instance.write(
        "bootstrap.xml",
        '<broker xmlns="http://activemq.apache.org/schema">'
        '<jaas-security domain="work" certificate-domain="work-cert"/></broker>',
    )
    settings = instance.load()
    assert settings.login_domain is not None
    assert settings.login_domain.name == "work"
    assert settings.login_domain.modules == ((LoginModule.PROPERTIES, ControlFlag.REQUIRED),)
    assert settings.login_domain.certificates_decide
    assert settings.certificate_login_module == CertificateLoginModule(
        instance.etc / "cert-users.properties", instance.etc / "cert-roles.properties", reload=False
    )


def test_a_domain_of_certificates_asks_for_nothing_else(instance: Instance) -> None:
    """A password would be asked for there, too, and is not looked at."""
    both = domain(PROPERTIES, "required") + domain(PROPERTIES, "required", name="cert")
    instance.write("login.config", both)
    security = '<jaas-security domain="activemq" certificate-domain="cert"/>'
    instance.write("bootstrap.xml", f"<broker>{security}</broker>")
    assert "has more for certificates than TextFileCertificateLoginModule" in instance.refused()


@pytest.mark.parametrize("flag", ["required", "requisite"])
def test_a_module_that_must_be_asked_and_cannot_is_refused(instance: Instance, flag: str) -> None:
    """By name and line: without it the others would let in whom Artemis does not."""
    instance.write("login.config", domain(PROPERTIES, "sufficient", LDAP, flag))
    told = instance.refused()
    assert told.startswith(f"{instance.etc / 'login.config'}:7: <LDAPLoginModule>: is {flag} and")


@pytest.mark.parametrize("flag", ["sufficient", "optional"])
def test_a_module_that_need_not_be_asked_is_told_of(instance: Instance, flag: str) -> None:
    """The users of the others log in."""
    instance.write("login.config", domain(LDAP, flag, PROPERTIES, "sufficient"))
    settings = instance.load()
    assert settings.properties_login_module is not None
    assert settings.not_applied == (
        f"{instance.etc / 'login.config'}:2: LDAPLoginModule: is not asked; whom it alone knows"
        " cannot log in",
    )


def test_a_certificate_and_a_password_together_are_refused(instance: Instance) -> None:
    """Of a client one of the two is looked at."""
    instance.write("login.config", domain(CERTIFICATE, "required", PROPERTIES, "required"))
    assert "and a password are both required of each client" in instance.refused()
    instance.write("login.config", domain(CERTIFICATE, "sufficient", PROPERTIES, "required"))
    assert instance.load().certificate_login_module is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("activemq {\n x.Y maybe;\n};", ":2: 'maybe' is no flag"),
        ("activemq {\n x.Y required\n a=;\n};", ":3: expected a value of a"),
        ("activemq {\n x.Y required a b;\n};", ":2: expected '='"),
        ('activemq {\n x.Y required a="b;\n};', ":2: a quote is not closed"),
        ("activemq {\n x.Y required", ":2: expected the name of an option"),
        ("a { };\na { };", ":2: the domain 'a' is there twice"),
        (
            domain(PROPERTIES.replace('"artemis-users', '"${{nowhere}}'), "required"),
            ":2: <PropertiesLoginModule>: ${nowhere} is not set",
        ),
        (
            domain(
                PROPERTIES.replace(
                    "debug=false", "org.apache.activemq.jaas.properties.password.codec=my.Codec"
                ),
                "required",
            ),
            ":2: <PropertiesLoginModule>: has a password.codec that is code of yours",
        ),
        (domain(PROPERTIES, "sufficient", PROPERTIES, "sufficient"), "is there twice in a domain"),
    ],
)
def test_what_is_wrong_in_login_config_is_told(instance: Instance, text: str, told: str) -> None:
    """With file and line, and beside what is wrong in the broker.xml."""
    instance.write("login.config", text)
    found = instance.refused("<acceptors><acceptor>nonsense</acceptor></acceptors>")
    assert "login.config:" in found
    assert told in found
    assert "is not an acceptor's URL" in found


def test_users_of_the_broker_xml_win(instance: Instance) -> None:
    """Artemis' files are not read, and that is said; without security nobody asks for them."""
    instance.write("login.config", "what is not read is not wrong")
    settings = instance.load(
        '<users xmlns="urn:orthia"><user name="bob" password="b" roles="amq"/></users>'
    )
    assert settings.login_domain is None
    assert settings.properties_login_module is None
    assert any(
        one.startswith(f"{instance.etc / 'login.config'} is not read: broker.xml has <users>")
        for one in settings.warnings
    )
    assert instance.load("<security-enabled>false</security-enabled>").login_domain is None


@pytest.mark.parametrize(
    ("manager", "told"),
    [
        ("<basic-security/>", "basic-security: its users are in Artemis' own journal"),
        ('<security-manager class-name="x.Y"/>', "security-manager: decides by code of yours"),
    ],
)
def test_another_security_manager_is_told_of(instance: Instance, manager: str, told: str) -> None:
    """The files it does not read let nobody in here either."""
    instance.write("bootstrap.xml", f"<broker>\n{manager}</broker>")
    settings = instance.load()
    assert settings.properties_login_module is None
    assert settings.not_applied[0].startswith(f"{instance.etc / 'bootstrap.xml'}:2: {told}")


def test_a_domain_that_is_not_there_lets_nobody_in(instance: Instance) -> None:
    """As in Artemis; Java's ``other`` stands for each that is not there."""
    instance.write("login.config", domain(PROPERTIES, "required", name="elsewhere"))
    settings = instance.load()
    assert settings.login_domain is not None
    assert settings.login_domain.modules == ()
    assert "domain 'activemq': is not in this file" in settings.not_applied[0]
    instance.write("login.config", domain(PROPERTIES, "required", name="other"))
    assert instance.load().properties_login_module is not None


@pytest.mark.parametrize("folder", ["etc", "conf"])
def test_what_artemis_start_script_sets_has_a_default(tmp_path: Path, folder: str) -> None:
    """From the place of the broker.xml: the instance is around ``etc``, else it is that folder."""
    file = broker_xml(
        tmp_path / folder,
        "<name>${artemis.home}</name>"
        "<journal-directory>${data.dir}/j</journal-directory>"
        "<bindings-directory>${artemis.instance}/b</bindings-directory>"
        "<large-messages-directory>${artemis.instance.etc}/l</large-messages-directory>",
    )
    around = tmp_path if folder == "etc" else file.parent
    settings = load(file)
    shown = {one.path: one.value for one in render(settings)}
    assert settings.name == str(around)
    assert shown["core/journal-directory"] == str(around / "data" / "j")
    assert shown["core/bindings-directory"] == str(around / "b")
    assert shown["core/large-messages-directory"] == str(file.parent / "l")
    given = load(file, system_properties={"data.dir": "/srv/data"})
    assert {one.path: one.value for one in render(given)}["core/journal-directory"] == "/srv/data/j"


P, C, G = LoginModule.PROPERTIES, LoginModule.CERTIFICATE, LoginModule.GUEST
REQUIRED, REQUISITE = ControlFlag.REQUIRED, ControlFlag.REQUISITE
SUFFICIENT, OPTIONAL = ControlFlag.SUFFICIENT, ControlFlag.OPTIONAL
YES, NO, IGNORED = Answer.SUCCEEDED, Answer.FAILED, Answer.IGNORED


@pytest.mark.parametrize(
    ("flags", "answers", "let_in_by"),
    [
        ((SUFFICIENT, SUFFICIENT), (YES, YES), (P,)),
        ((SUFFICIENT, SUFFICIENT), (NO, YES), (G,)),
        ((SUFFICIENT, SUFFICIENT), (NO, IGNORED), ()),
        ((REQUIRED, SUFFICIENT), (NO, YES), ()),
        ((REQUIRED, SUFFICIENT), (YES, NO), (P,)),
        ((REQUIRED, REQUIRED), (YES, YES), (P, G)),
        ((REQUIRED, REQUIRED), (YES, IGNORED), (P,)),
        ((REQUISITE, SUFFICIENT), (NO, YES), ()),
        ((OPTIONAL, OPTIONAL), (NO, YES), (G,)),
        ((OPTIONAL, OPTIONAL), (NO, NO), ()),
        ((OPTIONAL, REQUIRED), (YES, NO), ()),
        ((OPTIONAL, OPTIONAL), (IGNORED, IGNORED), ()),
    ],
)
def test_modules_decide_as_java_has_it(
    flags: tuple[ControlFlag, ControlFlag],
    answers: tuple[Answer, Answer],
    let_in_by: tuple[LoginModule, ...],
) -> None:
    """What each flag counts, of a module of users and one of guests."""
    modules = tuple(zip((P, G), flags, strict=True))
    assert who_lets_in(modules, dict(zip((P, G), answers, strict=True))) == let_in_by
