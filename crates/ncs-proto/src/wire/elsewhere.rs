//! Servers named in the reason of a close: a refused consumer is told where else to go, although no
//! stream of the connection brings it a message any more.

use super::message::{Alternate, REASON_MAX, is_server_address};
use crate::hex;

const SCHEME: &str = "ncs://";

/// A reason with as many of these servers behind it as there is room for.
pub fn write(reason: &str, servers: &[Alternate]) -> String {
    let mut out = reason.to_owned();
    for server in servers {
        let url = url(server);
        if out.len() + 1 + url.len() <= REASON_MAX {
            out.push(' ');
            out += &url;
        }
    }
    out
}

/// The URL of a server, with what pins it: `ncs://host:port#digits`.
pub fn url(server: &Alternate) -> String {
    let Alternate { address, identity } = server;
    let mut url = format!("{SCHEME}{address}");
    if let Some(identity) = identity {
        url.push('#');
        url += &hex::text(identity);
    }
    url
}

/// The servers that a reason names. Words that look like one and are none count as words.
pub fn read(reason: &str) -> Vec<Alternate> {
    reason.split(' ').filter_map(server).collect()
}

fn server(word: &str) -> Option<Alternate> {
    let url = word.strip_prefix(SCHEME)?;
    let (address, identity) = match url.split_once('#') {
        Some((address, digits)) => (address, Some(hex::bytes(digits)?)),
        None => (url, None),
    };
    let address = Some(address).filter(|address| is_server_address(address))?;
    Some(Alternate {
        address: address.to_owned(),
        identity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alternate(address: &str, identity: Option<u8>) -> Alternate {
        Alternate {
            address: address.to_owned(),
            identity: identity.map(|byte| [byte; 32]),
        }
    }

    #[test]
    fn servers_of_a_reason_are_read_as_they_were_written() {
        let servers = [
            alternate("media-2.example:4443", Some(0xa0)),
            alternate("[2001:db8::1]:4443", None),
        ];
        let reason = write("the server is full", &servers);
        assert_eq!(
            reason,
            format!(
                "the server is full ncs://media-2.example:4443#{} ncs://[2001:db8::1]:4443",
                "a0".repeat(32)
            )
        );
        assert_eq!(read(&reason), servers);
        assert_eq!(read("the server is full"), []);
    }

    #[test]
    fn a_reason_stays_within_its_bound() {
        let servers = [1, 2, 3].map(|byte| alternate(&"a".repeat(60), Some(byte)));
        let servers = servers.map(|server| Alternate {
            address: format!("{}:4443", server.address),
            ..server
        });
        let reason = write("the server goes away", &servers);
        assert!(reason.len() <= REASON_MAX);
        assert_eq!(read(&reason), servers[..1]);
    }

    #[test]
    fn other_words_name_nobody() {
        let short = format!("ncs://a:1#{}", "0".repeat(63));
        let wide = format!("ncs://a:1#{}", "\u{e4}".repeat(32));
        for word in [
            "ncs://",
            "ncs://a",
            "ncs://a:0",
            "a:1",
            "ncs://a:1#",
            &short,
            &wide,
        ] {
            assert_eq!(read(word), [], "{word}");
        }
    }
}
