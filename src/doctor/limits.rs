//! Limits of the system: open files, memory; and the clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;

use super::Check;
use crate::config::Config;
use crate::device::BackendChoice;
use crate::{admin, session};

/// Open files. Peers need none, because they share the sockets.
pub(super) fn files(config: &Config) -> Check {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    judge_files(open_files(&limits), files_needed(config))
}

fn judge_files(limit: Option<(u64, u64)>, needed: u64) -> Check {
    let name = "open files";
    let Some((soft, hard)) = limit else {
        let found = format!("the limit is unknown; the server needs about {needed}");
        return Check::warn(name, found, "check `ulimit -n`");
    };
    let found = format!(
        "the limit is {soft}, and the server needs at most {needed} (peers need none: they share a \
         socket)"
    );
    if soft >= needed {
        return Check::ok(name, found);
    }
    let change = match hard >= needed {
        true => format!("set ulimit -n {needed}, or LimitNOFILE={needed} in the unit"),
        false => format!("set LimitNOFILE={needed} in the unit: the hard limit is {hard}"),
    };
    Check::fail(name, found, change)
}

/// Files for sockets, scrapers, fetches of every stream, watches of directories, and the process
/// itself.
fn files_needed(config: &Config) -> u64 {
    let peers = config.endpoint.listen.len() * usize::from(config.endpoint.sockets.count());
    let sockets = peers * FILES_OF_SOCKET + 1 + admin::CONNECTIONS_MAX;
    // Each fetch has a connection or an open file, and as many idle connections are kept.
    let fetches: u64 = config
        .stream
        .values()
        .map(|_| 2 * u64::from(config.ingest.fetches_max) + 1)
        .sum();
    let gpus = if config.device.backend == BackendChoice::Cpu {
        0
    } else {
        FILES_OF_DRIVER
    };
    FILES_OF_PROCESS + sockets as u64 + fetches + gpus
}

/// Soft and hard limit in `/proc/self/limits`.
fn open_files(limits: &str) -> Option<(u64, u64)> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let mut values = line.split_whitespace().map(|text| {
        if text == "unlimited" {
            Some(u64::MAX)
        } else {
            text.parse().ok()
        }
    });
    Some((values.next()??, values.next()??))
}

/// The maximum memory of the process by its configuration, and the memory available.
pub(super) fn memory(config: &Config) -> Check {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let in_group = memory_of_group(&groups, |path| fs::read_to_string(path).ok());
    judge_memory(config, available(&meminfo), in_group)
}

fn judge_memory(config: &Config, in_system: Option<u64>, in_group: Option<u64>) -> Check {
    let name = "memory";
    let (ring, store) = (config.ring.bytes.as_u64(), config.store.bytes.as_u64());
    let peers = u64::from(config.endpoint.connections_max) * session::MEMORY_BYTES;
    let needed = ring.saturating_add(store).saturating_add(peers);
    let parts = format!(
        "up to {} (ring {}, store {}, {} connections of {} {})",
        ByteSize(needed),
        ByteSize(ring),
        ByteSize(store),
        config.endpoint.connections_max,
        ByteSize(session::MEMORY_BYTES),
        ByteSize(peers)
    );
    let (there, whose) = match (in_system, in_group) {
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

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// The memory left in the tightest of the process's control groups (version 2), or in its group
/// (version 1).
fn memory_of_group(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let number = |path: PathBuf| read(&path)?.trim().parse::<u64>().ok();
    let left = |directory: &Path, limit: &str, usage: &str| {
        Some(
            number(directory.join(limit))?
                .saturating_sub(number(directory.join(usage)).unwrap_or(0)),
        )
    };
    let root = Path::new("/sys/fs/cgroup");
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let of_unified = unified.and_then(|path| {
        let directories = Path::new(path).ancestors().map(|part| root.join(part));
        directories
            .filter_map(|directory| left(&directory, "memory.max", "memory.current"))
            .min()
    });
    let of_own = groups
        .lines()
        .find_map(|line| line.split_once(":memory:/").map(|(_, path)| path))
        .and_then(|path| {
            let directories = [root.join("memory").join(path), root.join("memory")];
            directories.iter().find_map(|directory| {
                left(directory, "memory.limit_in_bytes", "memory.usage_in_bytes")
            })
        });
    of_unified.or(of_own)
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

/// For the runtime, logs, signals and a terminal.
const FILES_OF_PROCESS: u64 = 64;
/// A socket for peers, and the event queue of its receiving thread.
const FILES_OF_SOCKET: usize = 4;
/// For the NVIDIA driver, with all cards of a host.
const FILES_OF_DRIVER: u64 = 128;
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

    #[test]
    fn files_are_for_streams_and_not_for_peers() {
        let mut config = Config::default();
        let few = files_needed(&config);
        config.endpoint.connections_max = 100_000;
        assert_eq!(files_needed(&config), few);
        config
            .stream
            .insert("a".into(), crate::stream::Config::default());
        assert_eq!(files_needed(&config), few + 33);
    }

    #[test]
    fn the_limit_of_files_is_read_and_judged() {
        let text = concat!(
            "Limit                     Soft Limit           Hard Limit           Units     \n",
            "Max open files            1024                 unlimited            files     \n"
        );
        assert_eq!(open_files(text), Some((1024, u64::MAX)));
        assert_eq!(open_files("Max open files no 1"), None);
        assert_eq!(judge_files(Some((1024, 4096)), 300).verdict, Verdict::Ok);
        let soft = judge_files(Some((256, 4096)), 300);
        assert_eq!(soft.verdict, Verdict::Fail);
        assert!(soft.to_string().contains("ulimit -n 300"), "{soft}");
        assert!(
            judge_files(Some((256, 256)), 300)
                .to_string()
                .contains("hard limit is 256")
        );
    }

    #[test]
    fn memory_is_that_of_the_tightest_group() {
        let config = Config::default();
        let needed = (64 << 20) + (512 << 20) + 10_000 * (128 << 10);
        assert_eq!(
            judge_memory(&config, Some(needed), None).verdict,
            Verdict::Ok
        );
        assert_eq!(
            judge_memory(&config, Some(needed), Some(needed - 1)).verdict,
            Verdict::Warn
        );
        assert_eq!(judge_memory(&config, None, None).verdict, Verdict::Warn);
        assert_eq!(
            available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"),
            Some(2 << 20)
        );

        let files = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/a/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/a/memory.current" => Some("400\n".to_owned()),
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => Some("50\n".to_owned()),
            _ => None,
        };
        assert_eq!(memory_of_group("0::/a/b\n", files), Some(600));
        assert_eq!(memory_of_group("0::/\n", files), None);
        assert_eq!(
            memory_of_group("5:memory:/c\n1:name=systemd:/\n", files),
            Some(50)
        );
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
