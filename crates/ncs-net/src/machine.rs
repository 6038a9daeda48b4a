//! The cores, memory and open files that this machine offers the process.
//!
//! Functions without I/O read the kernel's texts, so that tests can simulate other machines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Cores and memory that the process may use. They do not change while it runs, so that all who
/// derive sizes from them arrive at the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory of the system or of the tightest control group, whichever is less; `None` if
    /// the system does not tell.
    pub memory: Option<u64>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: [of_meminfo(&meminfo(), "MemTotal:"), group_here().limit]
                .into_iter()
                .flatten()
                .min(),
        }
    }
}

/// The processor time that all threads of this process have used.
pub fn cpu_time() -> Duration {
    time_on(ClockId::ProcessCPUTime)
}

/// The processor time that this thread has used.
pub fn thread_cpu_time() -> Duration {
    time_on(ClockId::ThreadCPUTime)
}

fn time_on(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// Memory that is available now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// In the system.
    pub system: Option<u64>,
    /// In the tightest control group, if one has a limit.
    pub group: Option<u64>,
}

impl Available {
    /// On this machine.
    pub fn now() -> Self {
        Self {
            system: of_meminfo(&meminfo(), "MemAvailable:"),
            group: group_here().left,
        }
    }
}

/// The limits on a process's open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit in force.
    pub soft: u64,
    /// The limit to which the process may raise it.
    pub hard: u64,
}

impl OpenFiles {
    /// Those of this process.
    pub fn here() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let [soft, hard] = [current, maximum].map(|limit| limit.unwrap_or(u64::MAX));
        Self { soft, hard }
    }

    /// Raises the limit in force as far as the process may, and returns the limits from then on.
    pub fn raise() -> io::Result<Self> {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, raised)?;
        Ok(Self::here())
    }
}

fn meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

fn of_meminfo(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// The memory of control groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Group {
    /// The tightest limit.
    limit: Option<u64>,
    /// What the tightest group has left.
    left: Option<u64>,
}

fn group_here() -> Group {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Group::of(&groups, |path| fs::read_to_string(path).ok())
}

impl Group {
    /// All control groups of the process (version 2), or its own (version 1).
    fn of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Self {
        let number = |path: PathBuf| read(&path)?.trim().parse::<u64>().ok();
        let look = |directory: &Path, limit: &str, usage: &str| {
            let limit = number(directory.join(limit))?;
            let used = number(directory.join(usage)).unwrap_or(0);
            Some((limit, limit.saturating_sub(used)))
        };
        let root = Path::new("/sys/fs/cgroup");
        let unified = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let of_unified: Vec<_> = unified
            .into_iter()
            .flat_map(|path| Path::new(path).ancestors())
            .filter_map(|part| look(&root.join(part), "memory.max", "memory.current"))
            .collect();
        let own = groups
            .lines()
            .find_map(|line| line.split_once(":memory:/").map(|(_, path)| path));
        let of_own = own.and_then(|path| {
            let directories = [root.join("memory").join(path), root.join("memory")];
            directories.iter().find_map(|directory| {
                look(directory, "memory.limit_in_bytes", "memory.usage_in_bytes")
            })
        });
        let found = if of_unified.is_empty() {
            of_own.into_iter().collect()
        } else {
            of_unified
        };
        Self {
            limit: found.iter().map(|(limit, _)| *limit).min(),
            left: found.iter().map(|(_, left)| *left).min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_tightest_group() {
        let files = |path: &Path| match path.to_str().unwrap() {
            "/sys/fs/cgroup/a/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/a/memory.current" => Some("400\n".to_owned()),
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/c/memory.max" => Some("700\n".to_owned()),
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => Some("50\n".to_owned()),
            _ => None,
        };
        let of = |groups: &str| {
            let Group { limit, left } = Group::of(groups, files);
            (limit, left)
        };
        assert_eq!(of("0::/a/b\n"), (Some(1000), Some(600)));
        assert_eq!(of("0::/a/c\n"), (Some(700), Some(600)));
        assert_eq!(of("0::/\n"), (None, None));
        assert_eq!(of("5:memory:/c\n1:name=systemd:/\n"), (Some(50), Some(50)));
    }

    #[test]
    fn lines_of_meminfo_are_read() {
        let text = "MemTotal: 9 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(of_meminfo(text, "MemTotal:"), Some(9 << 10));
        assert_eq!(of_meminfo(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(of_meminfo(text, "MemFree:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::here();
        assert!(
            machine.cores > 0 && machine.memory > Some(1 << 20),
            "{machine:?}"
        );
        let files = OpenFiles::here();
        assert!(files.soft > 0 && files.soft <= files.hard, "{files:?}");
    }
}
