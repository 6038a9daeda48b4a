//! The list of a fleet's members: a TOML document.
//!
//! It is written by the operator, so an unknown key is an error. It is bounded all the same,
//! because it may come from another machine.

use std::collections::BTreeSet;

use ncpeer::Server;
use ncs_proto::wire::message::REASON_MAX;
use ncs_proto::wire::text::plain;
use serde::Deserialize;

use crate::cluster::beat::{Address, Name};
use crate::cluster::roster::MEMBERS_MAX;
use crate::tls::Fingerprint;

/// The longest list that is read, in bytes.
pub(super) const BYTES_MAX: usize = 256 * 1024;
/// Most certificates of a member: the present one, and the next.
const FINGERPRINTS_MAX: usize = 4;

/// A server of the list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    /// Its `cluster.name`.
    pub(super) name: Name,
    /// Where the others reach it.
    pub(super) address: Address,
    /// The certificates of which it shows one. Without any, its certificate has to be signed by
    /// the system's roots for the host of its address.
    #[serde(default, deserialize_with = "crate::units::one_or_many")]
    pub(super) fingerprint: Vec<Fingerprint>,
}

impl Member {
    /// The host and the port of its address.
    pub(super) fn place(&self) -> Result<(String, u16), String> {
        let server = self.address.as_str().parse::<Server>();
        let Server { host, port, .. } = server.map_err(|error| error.to_string())?;
        Ok((host, port))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    member: Vec<Member>,
}

/// Reads a list. An empty one is an error: it is more likely a mistake than a fleet.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Member>, String> {
    if bytes.len() > BYTES_MAX {
        return Err(format!("more than {BYTES_MAX} bytes"));
    }
    let text = str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let Document { member: members } =
        toml::from_str(text).map_err(|error| on_one_line(&error.to_string()))?;
    if members.is_empty() {
        return Err("it names no member: each has a table [[member]]".to_owned());
    }
    if members.len() > MEMBERS_MAX {
        return Err(format!("{} members, at most {MEMBERS_MAX}", members.len()));
    }
    let mut names = BTreeSet::new();
    for Member {
        name, fingerprint, ..
    } in &members
    {
        if !names.insert(name) {
            return Err(format!("`{name}` is listed twice"));
        }
        if fingerprint.len() > FINGERPRINTS_MAX {
            return Err(format!(
                "`{name}` has more than {FINGERPRINTS_MAX} fingerprints"
            ));
        }
    }
    Ok(members)
}

/// The parser draws the place of an error below it, and quotes the document.
fn on_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('|'))
        .collect();
    plain(&said.join(": "), REASON_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> String {
        format!("[[member]]\nname = \"{name}\"\naddress = \"{name}.example:4443\"\n")
    }

    #[test]
    fn a_list_is_read() {
        let digits = "0f".repeat(32);
        let other = "1e".repeat(32);
        let text = member("a")
            + &member("b")
            + &format!("fingerprint = \"{digits}\"\n")
            + &member("c")
            + &format!("fingerprint = [\"{digits}\", \"{other}\"]\n")
            + "[[member]]\nname = \"d\"\naddress = \"[2001:db8::1]:443\"\n";
        let members = parse(text.as_bytes()).unwrap();
        let pins: Vec<_> = members
            .iter()
            .map(|member| member.fingerprint.len())
            .collect();
        assert_eq!(pins, [0, 1, 2, 0]);
        assert_eq!(members[1].fingerprint[0].to_string(), digits);
        let places: Vec<_> = members
            .iter()
            .map(|member| member.place().unwrap())
            .collect();
        assert_eq!(places[0], ("a.example".to_owned(), 4443));
        assert_eq!(places[3], ("2001:db8::1".to_owned(), 443));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let pinned = |pin: &str| member("a") + &format!("fingerprint = \"{pin}\"\n");
        let many: String = (0..=MEMBERS_MAX)
            .map(|n| member(&format!("m{n}")))
            .collect();
        let pins = vec![format!("\"{}\"", "0f".repeat(32)); FINGERPRINTS_MAX + 1].join(", ");
        for (text, reason) in [
            (String::new(), "names no member"),
            ("member = []".to_owned(), "names no member"),
            ("[[member]]\nname = \"a\"\n".to_owned(), "address"),
            (member("a").replace("\"a\"", "\"a b\""), "is no name"),
            (member("a").replace(":4443", ""), "is no address"),
            (member("a").replace("4443", "0"), "is no address"),
            (member("a") + &member("a"), "`a` is listed twice"),
            (pinned("0f"), "64 hexadecimal digits"),
            (member("a") + "colour = \"green\"\n", "colour"),
            (member("a") + "[other]\n", "other"),
            (many, "1025 members"),
            (
                member("a") + &format!("fingerprint = [{pins}]\n"),
                "more than 4",
            ),
            ("x".repeat(BYTES_MAX + 1), "more than 262144 bytes"),
            ("[".repeat(100_000), ""),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(parse(b"\xff").is_err());
    }
}
