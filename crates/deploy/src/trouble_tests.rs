//! What OpenSSH 10.0 and sudo 1.9.16p2 of Debian 13 print, as they were seen to.

use super::*;
use proptest::prelude::*;

#[test]
fn what_ssh_says_is_told_apart() {
    let unknown = "No ED25519 host key is known for 10.77.0.10 and you have requested strict checking.\nHost key verification failed.";
    let changed = "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.";
    let revoked = "@       WARNING: REVOKED HOST KEY DETECTED!               @\nHost key verification failed.";
    for (stderr, expected) in [
        (revoked, Login::Changed),
        ("Host key verification failed.", Login::Other),
        (unknown, Login::Unknown),
        (changed, Login::Changed),
        ("op@h: Permission denied (publickey).", Login::Denied),
        ("ssh: connect to host h port 22: Connection timed out", Login::Unreachable),
        ("", Login::Other),
    ] {
        assert_eq!(login(stderr), expected, "{stderr}");
    }
}

const PASSWORD: &str = "sudo: a password is required\n";

/// Made with a throw-away user: what was broken, the exit code, stderr, and what it is.
const SEEN: [(&str, i32, &str, Sudo); 23] = [
    ("no rule at all, or one without NOPASSWD", 1, PASSWORD, Sudo::Password),
    ("requiretty", 1, "sudo: sorry, you must have a tty to run sudo\n", Sudo::Terminal),
    (
        "our line is damaged",
        1,
        "/etc/sudoers.d/zz:1:14: syntax error\nop2 ALL=(ALL NOPASSWD: ALL\n             ^~~~~~~~~\nsudo: a password is required\n",
        Sudo::Damaged,
    ),
    (
        "no sudoers",
        1,
        "sudo: unable to open /etc/sudoers: No such file or directory\nsudo: error initializing audit plugin sudoers_audit\n",
        Sudo::Damaged,
    ),
    (
        "sudoers 0666",
        1,
        "sudo: /etc/sudoers is world writable\nsudo: error initializing audit plugin sudoers_audit\n",
        Sudo::Damaged,
    ),
    (
        "sudoers of a user",
        1,
        "sudo: /etc/sudoers is owned by uid 1001, should be 0\nsudo: error initializing audit plugin sudoers_audit\n",
        Sudo::Damaged,
    ),
    ("our file 0666", 1, "sudo:  is world writable\nsudo: a password is required\n", Sudo::Damaged),
    (
        "our file of a user",
        1,
        "sudo:  is owned by uid 1001, should be 0\nsudo: a password is required\n",
        Sudo::Damaged,
    ),
    (
        "a plugin that is not there",
        1,
        "sudo: error in /etc/sudo.conf, line 132 while loading plugin \"sudoers_policy\"\nsudo: unable to load /usr/libexec/sudo/nope.so: /usr/libexec/sudo/nope.so: cannot open shared object file: No such file or directory\nsudo: fatal error, unable to load plugins\n",
        Sudo::Damaged,
    ),
    ("no /etc/pam.d", 1, "sudo: unable to initialize PAM: Critical error - immediate abort\n", Sudo::Damaged),
    ("mode 0755", 1, "sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set\n", Sudo::Powerless),
    (
        "no_new_privs",
        1,
        "sudo: The \"no new privileges\" flag is set, which prevents sudo from running as root.\nsudo: If sudo is running in a container, you may need to adjust the container configuration to disable the flag.\n",
        Sudo::Powerless,
    ),
    ("mode 0600, dash", 127, "dash: 1: sudo: Permission denied\n", Sudo::Powerless),
    ("mode 0600, bash", 126, "bash: line 1: /usr/bin/sudo: Permission denied\n", Sudo::Powerless),
    ("a text file, bash", 127, "/usr/bin/sudo: line 1: broken: command not found\n", Sudo::Powerless),
    ("a text file, dash", 127, "/usr/bin/sudo: 1: broken: not found\n", Sudo::Powerless),
    ("not installed, bash", 127, "bash: line 1: sudo: command not found\n", Sudo::Missing),
    ("not installed, dash", 127, "dash: 1: sudo: not found\n", Sudo::Missing),
    ("not installed, zsh (not tried: as its source has it)", 127, "zsh:1: command not found: sudo\n", Sudo::Missing),
    (
        "an account that has expired",
        1,
        "sudo: account validation failure, is your account locked?\nsudo: a password is required\n",
        Sudo::Account,
    ),
    ("!authenticate, no rule", 1, "op2 is not in the sudoers file.\n", Sudo::NotAllowed),
    (
        "!authenticate, another command",
        1,
        "Sorry, user op2 is not allowed to execute '/usr/bin/true' as root on localhost.\n",
        Sudo::NotAllowed,
    ),
    ("!authenticate, another host", 1, "op2 is not allowed to run sudo on localhost.\n", Sudo::NotAllowed),
];

#[test]
fn what_sudo_says_is_told_apart() {
    for (broken, code, stderr, expected) in SEEN {
        assert_eq!(sudo(code, stderr), Some(expected), "{broken}");
        // A warning before it changes nothing.
        let warned = format!("sudo: unable to resolve host spk: Name or service not known\n{stderr}");
        assert_eq!(sudo(code, &warned), Some(expected), "{broken}");
        let said = expected.says("op2", "10.0.0.1", &warned);
        let last = stderr.trim().lines().last().unwrap();
        assert!(said.contains(last) && said.contains("op2@10.0.0.1") && !said.contains("resolve host"), "{said}");
    }
    // In words that nobody knows, as of another language.
    assert_eq!(sudo(1, "sudo: Ein Passwort ist notwendig\n"), Some(Sudo::Other));
}

#[test]
fn each_trouble_has_its_own_remedy() {
    let says = |trouble: Sudo| trouble.says("op", "h", "sudo: x");
    assert!(says(Sudo::Missing).contains("apt install sudo"));
    assert!(says(Sudo::Powerless).contains("--reinstall sudo"));
    assert!(says(Sudo::Damaged).contains("visudo -c"));
    for trouble in [Sudo::Password, Sudo::NotAllowed] {
        let said = says(trouble);
        assert!(said.contains("echo 'op ALL=(ALL:ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/sparklane"), "{said}");
    }
    assert!(says(Sudo::Terminal).contains("Defaults:op !requiretty"));
    assert!(says(Sudo::Account).contains("chage -E -1 op"));
    assert!(says(Sudo::Other).contains("ssh op@h sudo -n true"));
}

#[test]
fn a_command_that_ran_and_failed_is_no_trouble_of_sudo() {
    let tool = "/nix/var/nix/gcroots/sparklane/tool/bin/sparklane";
    for (code, stderr) in [
        (0, "sudo: unable to resolve host spk: Name or service not known\n".to_owned()),
        (0, "sudo: /etc/sudo.conf is owned by uid 1001, should be 0\n".to_owned()),
        (1, "sudo: unable to resolve host spk: Name or service not known\n".to_owned()),
        (1, format!("sudo: {tool}: command not found\n")),
        (1, format!("sudo: unable to execute {tool}: Exec format error\n")),
        (127, format!("bash: line 1: {tool}: No such file or directory\n")),
        (1, "/etc/sudoers:55:13: syntax error\ngarbage here\n            ^\nits own words\n".to_owned()),
        (1, "sudo: unable to resolve host x: y\nrefused: the lane has no key\n".to_owned()),
        (5, "held by op@h\n".to_owned()),
        (1, String::new()),
        (-1, String::new()),
    ] {
        assert_eq!(sudo(code, &stderr), None, "{stderr}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn odd_words_never_panic(code in -1_i32..256, text in "(sudo: |sudo)?\\PC{0,40}(\n(sudo: )?\\PC{0,40}){0,4}") {
        let _login = login(&text);
        let why = sudo(code, &text);
        prop_assert!(code != 0 || why.is_none());
        let _said = why.unwrap_or(Sudo::Other).says("u", "h", &text);
    }
}
