//! What an operator does about the complaints of `/readyz`, by the part that complains.
//!
//! docs/operating.md has the same table; a test compares them.

use super::ServerPart;

/// What to do about this complaint of a part.
pub fn advice(part: &str, reason: &str) -> &'static str {
    let fits = |row: &&(&str, &str, &'static str)| row.0 == part && reason.starts_with(row.1);
    if reason.ends_with(RESTARTING) {
        RESTARTS
    } else if let Some((.., advice)) = ADVICE.iter().find(fits) {
        advice
    } else if ServerPart::ALL.iter().any(|known| known.name() == part) {
        PROCESS_ENDS
    } else {
        UNKNOWN
    }
}

/// Part, beginning of its reason, advice. The first one that fits counts.
pub const ADVICE: [(&str, &str, &str); 12] = [
    (
        "admission",
        "",
        "check that the URL or file of `admission.keys` answers with a JSON Web Key Set, and the \
         file of `admission.clients_ca`; until then the old keys stay in force",
    ),
    (
        "cluster",
        "",
        "viewers notice nothing, and the other servers are unknown until the engine is back: check \
         that a server of `cluster.nats.urls` runs, and the way there; with a list of members, the \
         last good one stays in force: check that `cluster.static.members` and `secret_file` can \
         be read",
    ),
    (
        "device",
        "",
        "the CPU does the work of a lost GPU: look at `nvidia-smi` and the log, then restart the \
         server, which opens the GPU again",
    ),
    (
        "headroom",
        "",
        "current viewers continue, nobody is admitted: if `busy` is near 100 %, add processors or \
         another server; otherwise look at the device, and at a full ring",
    ),
    (
        "origin",
        "",
        "viewers get what the server holds: check that the origin runs, `stream.NAME.origin`, and \
         the way there; the log has URL and status",
    ),
    (
        "relay",
        "",
        "viewers have every held segment in use: a larger `--bytes`, or fewer streams",
    ),
    (
        "server",
        "starting",
        "wait: opening a GPU or reading many files takes seconds; if it stays, the log says what \
         the start waits for",
    ),
    (
        "server",
        "draining",
        "nothing: the server was told to stop, and open requests may finish",
    ),
    (
        "server",
        "no connection",
        "check that the server runs, its address, and UDP through the firewalls between",
    ),
    ("server", "", "the log has more"),
    (
        "store",
        "",
        "viewers have three quarters of the store in use, and a segment does not fit in the rest: \
         a larger `store.bytes`, or fewer streams",
    ),
    (
        "streams",
        "",
        "configure a `[stream.NAME]` table, then reload",
    ),
];

/// The end of the reason of a part that died and restarts.
pub(super) const RESTARTING: &str = "and is restarting";
/// The advice on such a part.
pub const RESTARTS: &str = "the part restarts by itself, and viewers may not notice: if it dies \
                            again and again, report the errors in the log";
/// The advice on an essential part that died.
pub const PROCESS_ENDS: &str = "the process ends, and its service manager starts it again: keep \
                                the log from before, and report the error in it";
const UNKNOWN: &str = "look for the part's name in the log";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_advice() {
        for part in ServerPart::ALL.map(ServerPart::name) {
            assert_eq!(advice(part, "it panicked and is restarting"), RESTARTS);
            assert_ne!(advice(part, "it ended"), UNKNOWN, "{part}");
        }
        assert_eq!(advice("encoder", "it ended"), PROCESS_ENDS);
        assert!(advice("device", "it hangs").contains("nvidia-smi"));
        assert!(advice("server", "draining").starts_with("nothing"));
        assert_eq!(advice("server", "what"), "the log has more");
        assert_eq!(advice("nobody", "what"), UNKNOWN);
    }
}
