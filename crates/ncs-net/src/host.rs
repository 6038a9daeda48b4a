//! The host names that an HTTP listener answers to.
//!
//! A page in a browser can make its own name resolve to an address of this machine (DNS rebinding).
//! The browser then treats the listener as the page's origin, but still sends that name as Host. So
//! a listener that browsers can reach must refuse names that are not its own.
//!
//! No I/O here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// The host name in the form that is compared with requests, without its port.
pub fn parse(text: &str) -> Result<String, String> {
    let host = match text.parse::<Authority>() {
        _ if text.parse::<Ipv6Addr>().is_ok() => plain(text),
        Ok(authority) if !text.contains('@') => plain(authority.host()),
        _ => String::new(),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if !host.is_empty() && host.bytes().all(is_name) {
        Ok(host)
    } else {
        Err(format!(
            "`{text}` is not a host name such as tv.example (give an internationalised name in its \
             xn-- form)"
        ))
    }
}

/// The host of a request; an absolute URI takes precedence (RFC 9112, section 3.2.2). `None` unless
/// there is exactly one.
pub fn of(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let host: Authority = match (uri.authority(), first, second) {
        (Some(authority), _, None) => authority.clone(),
        (None, Some(host), None) => host.to_str().ok()?.parse().ok()?,
        _ => return None,
    };
    has_right_port(&host).then_some(host)
}

/// Whether the host is an address that `accepts`, a name of loopback, or one of `names`, which are
/// in the form of [`parse`].
pub fn is_own(host: &Authority, names: &[String], accepts: impl Fn(IpAddr) -> bool) -> bool {
    let host = plain(host.host());
    match host.parse::<IpAddr>() {
        // Unlike a name, an address cannot be made to resolve elsewhere.
        Ok(address) if accepts(address) => true,
        _ => host == "localhost" || host.ends_with(".localhost") || names.contains(&host),
    }
}

/// An address that a program on this machine can use: an unspecified one becomes loopback.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// A host in lower case, without brackets and final dot; addresses in their shortest form.
fn plain(host: &str) -> String {
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .trim_end_matches('.')
        .to_ascii_lowercase();
    host.parse::<IpAddr>()
        .map_or(host, |address| address.to_canonical().to_string())
}

/// Whether its port, if any, is valid, which the parser does not check.
fn has_right_port(authority: &Authority) -> bool {
    let place = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = place
        .strip_prefix(authority.host())
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or_default();
    port.is_empty() || port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(uri: &str, hosts: &[&str]) -> Option<Authority> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        of(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn a_request_has_one_host() {
        assert_eq!(host("/", &["localhost:1"]).unwrap(), "localhost:1");
        assert_eq!(host("http://a/", &["localhost"]).unwrap(), "a");
        for hosts in [
            &[][..],
            &["localhost", "localhost"],
            &["a b"],
            &["localhost:65536"],
            &["[::1]:99999999"],
        ] {
            assert_eq!(host("/", hosts), None, "{hosts:?}");
        }
    }

    #[test]
    fn addresses_loopback_and_given_names_are_own() {
        let names = [parse("Ops.example.:80").unwrap()];
        let is_own = |host: &str| is_own(&host.parse().unwrap(), &names, |_| true);
        for host in [
            "127.0.0.1:9443",
            "10.1.2.3",
            "[::1]:9443",
            "LOCALHOST:1",
            "a.localhost",
            "ops.example:9443",
            "OPS.example.",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "ops.example.evil",
            "xops.example",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }
}
