//! A bridge, and around it a namespace for the server and one for each viewer.

use nctest::netns::{ip, run};

/// Where the server is.
pub(crate) const SERVER: &str = "10.78.0.1";
/// The device of every namespace but the bridge's.
pub(crate) const DEVICE: &str = "veth0";

/// What may wait at a viewer's limit before packets are dropped, and what may leave at once.
const QUEUE: &str = "200ms";
const BURST: &str = "6000b";

/// Where a viewer is.
pub(crate) fn address(viewer: usize) -> String {
    format!("10.78.{}.{}", 1 + viewer / 250, 1 + viewer % 250)
}

/// The namespaces, removed when dropped.
pub(crate) struct Network {
    bridge: String,
    pub(crate) server: String,
    pub(crate) viewers: Vec<String>,
}

impl Network {
    /// `upload`: the bits a second that each viewer can send, headers of Ethernet included.
    pub(crate) fn new(viewers: usize, upload: u64) -> Result<Self, String> {
        let name = |end: &str| format!("ncw{}{end}", std::process::id());
        let viewers = (0..viewers)
            .map(|viewer| name(&viewer.to_string()))
            .collect();
        let made = Self {
            bridge: name("b"),
            server: name("s"),
            viewers,
        };
        let bridge = &made.bridge;
        ip(&format!("netns add {bridge}"))?;
        ip(&format!("-n {bridge} link add br0 type bridge"))?;
        ip(&format!("-n {bridge} link set br0 up"))?;
        made.join(&made.server, "server", SERVER)?;
        for (number, namespace) in made.viewers.iter().enumerate() {
            made.join(namespace, &format!("viewer{number}"), &address(number))?;
            let limit = format!("rate {upload}bit burst {BURST} latency {QUEUE}");
            run(
                "tc",
                &format!("-n {namespace} qdisc add dev {DEVICE} root tbf {limit}"),
            )?;
        }
        Ok(made)
    }

    fn join(&self, namespace: &str, port: &str, address: &str) -> Result<(), String> {
        let bridge = &self.bridge;
        ip(&format!("netns add {namespace}"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!(
            "link add {DEVICE} netns {namespace} type veth peer name {port} netns {bridge}"
        ))?;
        ip(&format!("-n {bridge} link set {port} master br0 up"))?;
        ip(&format!(
            "-n {namespace} addr add {address}/16 dev {DEVICE}"
        ))?;
        ip(&format!("-n {namespace} link set {DEVICE} up"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in self.viewers.iter().chain([&self.server, &self.bridge]) {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}
