//! Limits of the system: open files, memory; and the clock.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;

use super::Check;
use crate::config::Config;
use crate::machine::{Available, Machine, OpenFiles};
use crate::session;
use crate::sizes::Sizes;

/// Open files. Peers need none, because they share the sockets.
pub(super) fn files(config: &Config) -> Check {
    judge_files(OpenFiles::here(), config.files_needed())
}

fn judge_files(limits: OpenFiles, needed: u64) -> Check {
    let (name, OpenFiles { soft, hard }) = ("open files", limits);
    let raised = match hard > soft {
        true => format!(", which the server raises to {}", of_files(hard)),
        false => String::new(),
    };
    let found = format!(
        "the limit is {}{raised}, and the server needs at most {needed} (peers need none: they \
         share a socket)",
        of_files(soft)
    );
    match hard >= needed {
        true => Check::ok(name, found),
        false => Check::fail(
            name,
            found,
            format!("set LimitNOFILE={needed} in the unit, or ulimit -Hn {needed}"),
        ),
    }
}

fn of_files(limit: u64) -> String {
    match limit {
        u64::MAX => "unlimited".to_owned(),
        _ => limit.to_string(),
    }
}

/// The maximum memory of the process by its configuration, and the memory available.
pub(super) fn memory(config: &Config) -> Check {
    judge_memory(config, &config.sizes(&Machine::here()), Available::now())
}

fn judge_memory(config: &Config, sizes: &Sizes, available: Available) -> Check {
    let name = "memory";
    let (ring, store) = (sizes.ring.as_u64(), config.store.bytes.as_u64());
    let peers = u64::from(sizes.connections) * session::MEMORY_BYTES;
    let needed = ring.saturating_add(store).saturating_add(peers);
    let parts = format!(
        "up to {} (ring {}, store {}, {} connections of {} {})",
        ByteSize(needed),
        ByteSize(ring),
        ByteSize(store),
        sizes.connections,
        ByteSize(session::MEMORY_BYTES),
        ByteSize(peers)
    );
    let (there, whose) = match (available.system, available.group) {
        (Some(system), Some(group)) if group < system => (group, "available in the control group"),
        (Some(system), _) => (system, "available"),
        (None, Some(group)) => (group, "available in the control group"),
        (None, None) => {
            return Check::warn(
                name,
                format!("{parts}; the available memory is unknown"),
                "check `free`",
            );
        }
    };
    let found = format!("{parts}; {} {whose}", ByteSize(there));
    match needed <= there {
        true => Check::ok(name, found),
        false => Check::warn(
            name,
            found,
            "lower `store.bytes`, `ring.bytes` or `endpoint.connections_max`, or add memory",
        ),
    }
}

/// The clock. Only tokens and client certificates depend on it.
pub(super) fn clock(config: &Config) -> Check {
    let is_needed = config.admission.keys.is_some() || config.admission.clients_ca.is_some();
    let signs = SYNCHRONISED
        .iter()
        .find(|(path, _)| Path::new(path).exists())
        .map(|(_, sign)| *sign);
    judge_clock(SystemTime::now(), signs, is_needed)
}

fn judge_clock(now: SystemTime, sign: Option<&str>, is_needed: bool) -> Check {
    let (name, time) = ("clock", humantime::format_rfc3339_seconds(now));
    let set = "set the clock and start chronyd or systemd-timesyncd: timedatectl set-ntp true";
    if now < SystemTime::UNIX_EPOCH + EARLIEST {
        let found = format!("{time} is before this program's release, so the clock is wrong");
        return if is_needed {
            Check::fail(name, found + ", and tokens depend on it", set)
        } else {
            Check::warn(name, found, set)
        };
    }
    match (sign, is_needed) {
        (Some(sign), _) => Check::ok(name, format!("{time}, {sign}")),
        (None, true) => {
            let found = format!(
                "{time}; it may not be synchronised, and tokens and client certificates depend on \
                 it"
            );
            Check::warn(
                name,
                found,
                "start chronyd or systemd-timesyncd (timedatectl set-ntp true); `admission.leeway` \
                 covers only small errors",
            )
        }
        (None, false) => Check::ok(
            name,
            format!("{time}; it may not be synchronised, but nothing configured depends on it"),
        ),
    }
}

/// 2026-01-01.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// Files that exist if the clock is synchronised.
const SYNCHRONISED: [(&str, &str); 3] = [
    (
        "/run/systemd/timesync/synchronized",
        "synchronised by systemd-timesyncd",
    ),
    ("/run/chrony/chronyd.pid", "kept by chronyd"),
    ("/run/chronyd.pid", "kept by chronyd"),
];

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::endpoint::Connections;

    #[test]
    fn files_are_for_streams_and_not_for_peers() {
        let mut config = Config::default();
        let few = config.files_needed();
        config.endpoint.connections_max = Connections::at_most(100_000);
        assert_eq!(config.files_needed(), few);
        config
            .stream
            .insert("a".into(), crate::stream::Config::default());
        assert_eq!(config.files_needed(), few + 33);
    }

    #[test]
    fn the_limit_of_files_is_read_and_judged() {
        let judge = |soft, hard| judge_files(OpenFiles { soft, hard }, 300);
        assert_eq!(judge(1024, 4096).verdict, Verdict::Ok);
        let soft = judge(256, 4096);
        assert_eq!(soft.verdict, Verdict::Ok, "the server raises it");
        assert!(
            soft.to_string()
                .contains("the limit is 256, which the server raises to 4096"),
            "{soft}"
        );
        assert!(
            judge(256, u64::MAX).to_string().contains("unlimited"),
            "{soft}"
        );
        let hard = judge(256, 256);
        assert_eq!(hard.verdict, Verdict::Fail);
        assert!(
            hard.to_string().contains("LimitNOFILE=300 in the unit"),
            "{hard}"
        );
    }

    #[test]
    fn memory_is_that_of_the_tightest_group() {
        let config = Config::default();
        let sizes = Sizes {
            connections: 10_000,
            ring: ByteSize::mib(64),
        };
        let needed = (64 << 20) + (512 << 20) + 10_000 * (128 << 10);
        let verdict =
            |system, group| judge_memory(&config, &sizes, Available { system, group }).verdict;
        assert_eq!(verdict(Some(needed), None), Verdict::Ok);
        assert_eq!(verdict(Some(needed), Some(needed - 1)), Verdict::Warn);
        assert_eq!(verdict(None, None), Verdict::Warn);
    }

    #[test]
    fn defaults_fit_the_memory_of_any_machine() {
        let config = Config::default();
        for gib in [1, 2, 4, 16, 128, 1024] {
            for cores in [1, 2, 16, 192] {
                let memory = Some(gib << 30);
                let sizes = config.sizes(&Machine { cores, memory });
                let available = Available {
                    // A system of its own takes some.
                    system: Some((gib << 30) / 100 * 85),
                    group: None,
                };
                let check = judge_memory(&config, &sizes, available);
                assert_eq!(check.verdict, Verdict::Ok, "{gib} GiB, {cores}: {check}");
            }
        }
    }

    #[test]
    fn the_clock_counts_where_tokens_do() {
        let [then, now] = [1_000_000_000, 1_800_000_000]
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(judge_clock(then, None, true).verdict, Verdict::Fail);
        assert_eq!(
            judge_clock(then, Some("synchronised"), false).verdict,
            Verdict::Warn
        );
        assert_eq!(judge_clock(now, None, true).verdict, Verdict::Warn);
        assert_eq!(judge_clock(now, None, false).verdict, Verdict::Ok);
        assert!(
            judge_clock(now, Some("kept by chronyd"), true)
                .to_string()
                .ends_with("kept by chronyd")
        );
    }
}
