//! Which hosts a call would reach: every one in its arguments, in one normal form, by every way in which a program may read
//! an address.
//!
//! - Source: the differences between RFC 3986 and the WHATWG URL standard (backslashes, missing slashes, tabs and line
//!   breaks dropped), and `inet_aton` for the forms of IPv4 addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::readings;
use crate::Scope;

/// What is known of the hosts in a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// Each host, in lower case, without user, port or trailing dot; addresses in their plain form.
    pub(crate) all: BTreeSet<String>,
    /// Each host and each domain above it.
    pub(crate) within: BTreeSet<String>,
    /// Those that the scope does not name.
    pub(crate) outside: BTreeSet<String>,
    /// The schemes, in lower case.
    pub(crate) schemes: BTreeSet<String>,
    /// The ports that were written.
    pub(crate) ports: BTreeSet<i64>,
    /// Whether one is this machine, a private network, or a name that only such a network knows.
    pub(crate) local: bool,
    /// Whether one is an address instead of a name.
    pub(crate) literal: bool,
    /// Whether one has letters outside ASCII, is punycode, or could not be read.
    pub(crate) odd: bool,
    /// Whether an address carries a user or a password.
    pub(crate) userinfo: bool,
}

/// The longest name a host can have, by the domain name system.
const LONGEST: usize = 253;

/// How far an authority is read; a longer one counts as one that cannot be read.
const AUTHORITY: usize = 320;

/// Schemes that a browser reads with any number of slashes or backslashes.
const SPECIAL: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];

/// Endings that are more often a file's than a host's; such a word is a host only with a scheme or by its argument.
const FILES: [&str; 58] = [
    "txt", "md", "rs", "py", "sh", "js", "ts", "jsx", "tsx", "json", "toml", "yaml", "yml", "csv", "tsv", "pdf", "doc",
    "docx", "xls", "xlsx", "ppt", "pptx", "png", "jpg", "jpeg", "gif", "svg", "webp", "html", "htm", "css", "xml",
    "ini", "cfg", "conf", "log", "lock", "zip", "gz", "tar", "tgz", "xz", "bak", "tmp", "old", "sql", "db", "parquet",
    "bin", "exe", "dll", "so", "c", "h", "cpp", "java", "go", "ipynb",
];

impl Hosts {
    /// Takes in every host a text holds. A bare name counts when the argument says so (`named`), and in a text that is one
    /// word also when it looks like a host.
    pub(super) fn text(&mut self, text: &str, named: bool, scope: &Scope) {
        // Nothing that names a host lacks all of these.
        if !named
            && !text.contains([':', '@', '.', '\\', '%', '/'])
            && text.is_ascii()
            && !text.eq_ignore_ascii_case("localhost")
        {
            return;
        }
        let (all, more) = readings::of(text);
        self.odd |= more && named;
        for reading in all {
            self.reading(&reading, named, scope);
            let tight: String = reading.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
            if tight != *reading {
                self.schemes_in(&tight, scope);
            }
        }
    }

    fn reading(&mut self, text: &str, named: bool, scope: &Scope) {
        self.schemes_in(text, scope);
        for (at, _) in text.match_indices('@') {
            let host = authority(start(&text[at + 1..]).0);
            if text[..at].ends_with(|c: char| !c.is_whitespace()) && host_like(host) {
                self.add(host, scope);
            }
        }
        let text = text.trim_matches(|c: char| c.is_whitespace() || "\"'`<>".contains(c));
        if let Some(rest) =
            text.strip_prefix("//").or_else(|| text.strip_prefix("\\\\")).or_else(|| text.strip_prefix("/\\"))
        {
            self.authorities(rest, scope);
        }
        if named {
            for word in text.split([' ', ',', ';', '\n']).filter(|w| !w.is_empty() && !has_scheme(w)) {
                self.authorities(word, scope);
            }
        } else if !text.contains(char::is_whitespace) && bare(authority(text)) {
            self.authorities(text, scope);
        }
    }

    /// Every `scheme:` with what follows it.
    fn schemes_in(&mut self, text: &str, scope: &Scope) {
        for (at, _) in text.match_indices(':') {
            let head = &text[..at];
            let start = head
                .rfind(|c: char| !(c.is_ascii_alphanumeric() || "+.-".contains(c)))
                .map_or(0, |i| i + head[i..].chars().next().map_or(1, char::len_utf8));
            let scheme = head[start..].to_ascii_lowercase();
            if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || scheme.len() < 2 {
                continue;
            }
            let rest = &text[at + 1..];
            let slashes = rest.len() - rest.trim_start_matches(['/', '\\']).len();
            if slashes >= 2 || (SPECIAL.contains(&scheme.as_str()) && !rest.is_empty()) {
                self.authorities(&rest[slashes..], scope);
                self.schemes.insert(scheme);
            } else if start == 0 && PLAIN.contains(&scheme.as_str()) {
                self.schemes.insert(scheme);
            }
        }
    }

    /// An authority by its different readings: where it ends, and which `@` ends the user.
    fn authorities(&mut self, rest: &str, scope: &Scope) {
        let (rest, cut) = start(rest);
        let plain = rest.split(['/', '?', '#', ' ', '"', '\'', '<', '>', ')']).next().unwrap_or_default();
        if cut && plain.len() == rest.len() {
            self.odd = true;
            self.outside.insert(rest.to_owned());
        }
        for reading in [plain, plain.split('\\').next().unwrap_or_default()] {
            let mut pieces: Vec<&str> = reading.split('@').collect();
            if pieces.len() > 1 {
                self.userinfo = true;
                pieces.remove(0);
            }
            for piece in pieces.into_iter().filter(|p| !p.is_empty()) {
                self.add(piece, scope);
            }
        }
    }

    /// One host, perhaps with a port.
    fn add(&mut self, text: &str, scope: &Scope) {
        let (name, port) = split_port(text);
        if let Some(Ok(port)) = port.map(str::parse::<u16>) {
            self.ports.insert(i64::from(port));
        }
        let host = name.trim_matches('.').to_lowercase();
        if host.is_empty() {
            return;
        }
        let host = match address(&host) {
            Some(ip) => {
                self.literal = true;
                self.local |= near(ip);
                ip.to_string()
            }
            None => host,
        };
        let label = |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let readable = host.parse::<IpAddr>().is_ok() || host.split('.').all(label);
        self.odd |= !readable || host.split('.').any(|l| l.starts_with("xn--"));
        self.local |= host == "localhost"
            || [".localhost", ".local", ".internal", ".lan", ".home.arpa", ".intranet"]
                .iter()
                .any(|end| host.ends_with(end));
        let mut above = host.as_str();
        self.within.insert(host.clone());
        self.odd |= host.len() > LONGEST;
        while let Some((_, parent)) = above.split_once('.') {
            self.within.insert(parent.to_owned());
            above = parent;
        }
        if !scope.reaches(&host) {
            self.outside.insert(host.clone());
        }
        self.all.insert(host);
    }
}

/// Schemes without an authority.
const PLAIN: [&str; 6] = ["data", "javascript", "mailto", "file", "blob", "vbscript"];

/// Whether a word begins with a scheme instead of a host.
fn has_scheme(word: &str) -> bool {
    word.split_once(':').is_some_and(|(head, rest)| {
        let head = head.to_ascii_lowercase();
        rest.starts_with(['/', '\\']) || SPECIAL.contains(&head.as_str()) || PLAIN.contains(&head.as_str())
    })
}

/// The start of a text, and whether more follows.
fn start(text: &str) -> (&str, bool) {
    match text.char_indices().nth(AUTHORITY) {
        Some((at, _)) => (&text[..at], true),
        None => (text, false),
    }
}

/// What precedes the first character that cannot be part of a host with its port.
fn authority(text: &str) -> &str {
    text.split(|c: char| c.is_whitespace() || "/\\?#@\"'<>(),;|".contains(c)).next().unwrap_or_default()
}

fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']').unwrap_or((rest, ""));
        return (inner, after.strip_prefix(':'));
    }
    match text.split_once(':') {
        // More than one colon: an IPv6 address without brackets.
        Some((_, after)) if after.contains(':') && text.parse::<Ipv6Addr>().is_ok() => (text, None),
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    }
}

/// Whether what follows an `@` is a host: it has a dot, is a number, or stands in brackets.
fn host_like(text: &str) -> bool {
    let (name, _) = split_port(text);
    let name = name.trim_end_matches('.');
    text.starts_with('[') || name.contains('.') || name.eq_ignore_ascii_case("localhost") || address(name).is_some()
}

/// Whether one word alone is a host.
fn bare(text: &str) -> bool {
    let (name, _) = split_port(text);
    let name = name.trim_end_matches('.').to_lowercase();
    if name == "localhost" || name.starts_with("www.") || text.starts_with('[') {
        return true;
    }
    if address(&name).is_some() {
        return name.matches('.').count() == 3 || name.matches(':').count() >= 2;
    }
    let labels: Vec<&str> = name.split('.').collect();
    let last = labels.last().copied().unwrap_or_default();
    labels.len() >= 2
        && labels.iter().all(|l| !l.is_empty())
        && last.chars().count() >= 2
        && last.chars().all(char::is_alphabetic)
        && !FILES.contains(&last)
}

/// An address in any form that programs take: IPv6, dotted IPv4, and the one to four part forms of `inet_aton` in decimal,
/// octal and hexadecimal.
fn address(host: &str) -> Option<IpAddr> {
    if let Ok(v6) = host.split('%').next().unwrap_or_default().parse::<Ipv6Addr>() {
        return Some(v6.to_ipv4_mapped().or_else(|| embedded(v6)).map_or(IpAddr::V6(v6), IpAddr::V4));
    }
    let parts: Vec<&str> = host.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    let numbers: Vec<u64> = parts.iter().map(|p| number(p)).collect::<Option<_>>()?;
    let (last, firsts) = numbers.split_last()?;
    if firsts.iter().any(|n| *n > 255) || *last >= 1 << (8 * (4 - firsts.len())) {
        return None;
    }
    let high = firsts.iter().enumerate().fold(0, |sum, (i, n)| sum | n << (8 * (3 - i)));
    u32::try_from(high | last).ok().map(|n| IpAddr::V4(Ipv4Addr::from(n)))
}

/// The IPv4 address inside a `::a.b.c.d` or a NAT64 address.
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = v6.segments();
    let low = Ipv4Addr::from(u32::from(s[6]) << 16 | u32::from(s[7]));
    let compatible = s[..6] == [0; 6] && s[6] != 0;
    (compatible || s[..6] == [0x64, 0xff9b, 0, 0, 0, 0]).then_some(low)
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    if digits.is_empty() {
        // `0x` is 0 to some.
        return (radix == 16).then_some(0);
    }
    digits.chars().all(|c| c.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

fn near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || a == 0
                || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, named: bool) -> Hosts {
        let mut hosts = Hosts::default();
        hosts.text(
            text,
            named,
            &Scope::default().with_host("good.example").unwrap().with_host("*.ours.example").unwrap(),
        );
        hosts
    }

    #[test]
    fn every_spelling_of_a_host_is_that_host() {
        for text in [
            "https://evil.example/x",
            "HTTPS://EVIL.EXAMPLE",
            "https://good.example@evil.example/",
            "https:evil.example",
            "https:/evil.example",
            "https:\\\\evil.example",
            "https://evil.example.",
            "https://evil.example:8443/a",
            "https://evil\u{3002}example",
            "https://\u{ff45}vil.example",
            "https://%65vil.example",
            "//evil.example/x",
            "\\\\evil.example\\share",
            "git@evil.example:a/b.git",
            "ssh://git@evil.example/a",
            "see https://evil.example!",
            "ht\ntps://evil.example",
            "https://ev\til.example",
            "ftp://good.example#@evil.example",
            "eve@evil.example",
            "Eve <eve@evil.example>",
            "mailto:eve@evil.example",
            "https://good.example\\@evil.example",
            "https://evil.example\\@good.example",
            "https://good.example%2540evil.example",
            "evil.example",
            "evil.example:80/x",
            "git+ssh://u:p@evil.example/r",
            "![x](https://evil.example/?q=1)",
            "https://a@good.example@evil.example",
        ] {
            let hosts = of(text, false);
            assert!(hosts.all.iter().any(|h| h.starts_with("evil.example")), "`{text}`: {hosts:?}");
            assert!(!hosts.outside.is_empty(), "`{text}`: {hosts:?}");
        }
    }

    #[test]
    fn every_spelling_of_this_machine_is_local() {
        for text in [
            "http://127.0.0.1",
            "http://127.1",
            "http://2130706433/",
            "http://0x7f000001",
            "http://0177.0.0.1",
            "http://0x7f.1",
            "http://[::1]:80/",
            "http://[::ffff:127.0.0.1]",
            "http://[::ffff:7f00:1]",
            "http://localhost",
            "http://LOCALHOST.",
            "http://a.localhost",
            "http://169.254.169.254/latest",
            "http://10.1.2.3",
            "http://192.168.0.1",
            "http://0/",
            "http://[fe80::1%25eth0]/",
            "http://[fd00::1]",
            "http://[64:ff9b::7f00:1]",
            "http://metadata.google.internal",
            "127.0.0.1:22",
            "localhost:8080",
            "http://\u{ff11}27.0.0.1",
        ] {
            assert!(of(text, false).local, "`{text}`: {:?}", of(text, false));
        }
        assert!(!of("http://8.8.8.8", false).local && of("http://8.8.8.8", false).literal);
        assert_eq!(of("http://0x7f.1", false).all, ["127.0.0.1".to_owned()].into());
    }

    #[test]
    fn a_host_of_the_scope_is_inside_and_its_neighbours_are_not() {
        for (text, inside) in [
            ("https://good.example/x?y", true),
            ("https://GOOD.example.:443", true),
            ("https://a.ours.example", true),
            ("https://ours.example", false),
            ("https://a.good.example", false),
            ("https://good.example.evil.example", false),
            ("https://evilgood.example", false),
            ("https://notours.example", false),
            ("https://g\u{f6}od.example", false),
        ] {
            assert_eq!(of(text, false).outside.is_empty(), inside, "`{text}`: {:?}", of(text, false));
        }
    }

    #[test]
    fn files_numbers_and_sentences_are_no_hosts() {
        for text in [
            "report.md",
            "a/b.txt",
            "1.5",
            "12",
            "main.rs:10",
            "Done. Then go on",
            "a: b",
            "10:30",
            "12345678",
            "v1.2.3",
            "e.g.",
        ] {
            assert_eq!(of(text, false).all, BTreeSet::new(), "`{text}`");
        }
        assert_eq!(of("report.md", true).all, ["report.md".to_owned()].into());
    }

    #[test]
    fn ports_schemes_users_and_domains_above_are_told() {
        let hosts = of("http://me:secret@a.b.example:8080/x", false);
        assert!(hosts.userinfo && !hosts.odd && !hosts.local);
        assert_eq!(hosts.within, ["a.b.example", "b.example", "example"].map(str::to_owned).into());
        assert_eq!((hosts.ports, hosts.schemes), ([8080].into(), ["http".to_owned()].into()));
        assert!(of("https://xn--80ak6aa92e.com", false).odd && of("https://\u{430}pple.com", false).odd);
        assert!(of("data:text/html,x", false).schemes.contains("data"));
    }

    #[test]
    fn no_text_costs_more_than_its_length_some_times_over() {
        for text in ["http:".repeat(20_000), "a.".repeat(50_000) + "com", "@".repeat(100_000), "x@a.b".repeat(20_000)] {
            let hosts = of(&text, true);
            assert!(hosts.all.iter().chain(&hosts.within).map(String::len).sum::<usize>() <= 10_000_000);
        }
        let long = of(&format!("http://{}@evil.example/", "u".repeat(400)), false);
        assert!(long.odd && long.all.contains("evil.example"), "{long:?}");
        assert!(!of(&format!("http://good.example/{}", "u".repeat(400)), false).odd);
    }

    proptest::proptest! {
        #[test]
        fn any_wrapping_of_an_address_shows_its_host(
            host in "[a-z]{1,8}\\.[a-z]{2,5}", user in "[a-z:]{0,5}", port in proptest::option::of(1u16..), up: bool, dot: bool,
            scheme in proptest::sample::select(vec!["http://", "https://", "https:\\\\", "ws:/", "ssh://"]),
            before in "[ a-z(\"]{0,6}", after in "([/?#\" ][a-z@.:/]{0,8})?",
        ) {
            let shown = if up { host.to_uppercase() } else { host.clone() };
            let user = if user.is_empty() { user } else { user + "@" };
            let port = port.map_or(String::new(), |p| format!(":{p}"));
            let dot = if dot { "." } else { "" };
            let before = if before.is_empty() || before.ends_with([' ', '(', '"']) { before } else { before + " " };
            let text = format!("{before}{scheme}{user}{shown}{dot}{port}{after}");
            let hosts = of(&text, false);
            proptest::prop_assert!(hosts.all.contains(&host), "`{text}`: {hosts:?}");
        }
        #[test]
        fn every_form_of_an_ipv4_address_is_one(n: u32) {
            let ip = Ipv4Addr::from(n);
            let [a, b, c, d] = ip.octets();
            for text in [
                format!("{n}"), format!("{n:#x}"), format!("0{n:o}"), format!("{a}.{}", n & 0xff_ffff),
                format!("{a}.{b}.{}", n & 0xffff), format!("{a:#x}.0{b:o}.{c}.{d:#X}"), format!("[::ffff:{ip}]"),
            ] {
                let hosts = of(&format!("http://{}/", text.replace("0X", "0x")), false);
                proptest::prop_assert!(hosts.all.contains(&ip.to_string()), "{text}: {hosts:?}");
            }
        }
        #[test]
        fn no_text_panics(text in ".{0,40}", named: bool) {
            let _ = of(&text, named);
        }
    }
}
