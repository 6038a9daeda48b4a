//! The check of what carries the beats of a fleet.

use super::Check;
use crate::cluster::{self, engine::Kind};

/// Without its engine a server serves, and knows no other.
pub(super) fn engine(config: &cluster::Config) -> Option<Check> {
    if config.engine == Kind::None {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let reached = match runtime {
        Ok(runtime) => {
            let reached = runtime.block_on(cluster::reach(config));
            // Does not wait for a name server that does not answer.
            runtime.shutdown_background();
            reached
        }
        Err(error) => Err(error.to_string()),
    };
    let servers = config.nats.urls.join(", ");
    Some(match reached {
        Ok(()) => Check::ok(ENGINE, format!("one of {servers} is reached")),
        Err(reason) => Check::warn(
            ENGINE,
            format!("none of {servers} is reached: {reason}"),
            "check that NATS runs there, and what `cluster.nats` names; until then this server \
             serves, and knows no other",
        ),
    })
}

const ENGINE: &str = "cluster";

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn an_engine_that_is_not_there_is_a_warning() {
        assert_eq!(engine(&cluster::Config::default()), None);
        let mut config = cluster::Config {
            engine: Kind::Nats,
            ..cluster::Config::default()
        };
        config.nats.urls = vec!["nats://127.0.0.1:9".to_owned()];
        let check = engine(&config).unwrap();
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains("nats://127.0.0.1:9"), "{check}");
        config.nats.ca = Some("/nowhere/ca.pem".into());
        let check = engine(&config).unwrap();
        assert!(check.found.contains("/nowhere/ca.pem"), "{check}");
    }
}
