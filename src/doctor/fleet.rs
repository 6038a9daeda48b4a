//! The checks of what carries the beats of a fleet, and of the document that its servers share.

use super::Check;
use crate::cluster::{self, engine::Kind};
use crate::config::Config;
use crate::document;

/// Without its engine a server serves, and knows no other.
pub(super) fn engine(config: &cluster::Config) -> Option<Check> {
    if config.engine == Kind::None {
        return None;
    }
    let (found, advice) = match on_a_runtime(found(config)) {
        Ok(found) => return Some(Check::ok(ENGINE, found)),
        Err(fault) => fault,
    };
    Some(Check::warn(
        ENGINE,
        found,
        format!("{advice}; until then this server serves, and knows no other"),
    ))
}

/// The document that the servers share. Without it a server goes on with what it has.
pub(super) fn document(config: &Config) -> Option<Check> {
    if !config.cluster.config.enabled {
        return None;
    }
    let (found, advice) = match on_a_runtime(document::inspect(config)) {
        Ok(found) => return Some(Check::ok(DOCUMENT, found)),
        Err(fault) => fault,
    };
    let until = "until then this server serves with its last good copy, or its own file";
    Some(Check::warn(DOCUMENT, found, format!("{advice}; {until}")))
}

/// What was found good, or what was not, and advice.
type Found = Result<String, (String, &'static str)>;

fn on_a_runtime(look: impl Future<Output = Found>) -> Found {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| (error.to_string(), "free memory, or raise the limits"))?;
    let found = runtime.block_on(look);
    // Does not wait for a name server that does not answer.
    runtime.shutdown_background();
    found
}

async fn found(config: &cluster::Config) -> Found {
    if config.engine == Kind::Static {
        let list = config.members.members.iter().map(ToString::to_string);
        let list: String = list.collect();
        return match config.members.inspect().await {
            Ok(members) => Ok(format!(
                "{list} lists {members}: `ncserverd cluster status` shows who of them answers"
            )),
            Err(error) => Err((
                error.to_string(),
                "check the list of members and the file of the secret",
            )),
        };
    }
    let servers = config.nats.urls.join(", ");
    match cluster::reach(config).await {
        Ok(()) => Ok(format!("one of {servers} is reached")),
        Err(reason) => Err((
            format!("none of {servers} is reached: {reason}"),
            "check that NATS runs there, and what `cluster.nats` names",
        )),
    }
}

const ENGINE: &str = "cluster";
const DOCUMENT: &str = "cluster.config";

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
        let mut whole = Config::default();
        assert_eq!(document(&whole), None);
        whole.cluster = config.clone();
        whole.cluster.config.enabled = true;
        let check = document(&whole).unwrap();
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains("not reached"), "{check}");
        config.nats.ca = Some("/nowhere/ca.pem".into());
        let check = engine(&config).unwrap();
        assert!(check.found.contains("/nowhere/ca.pem"), "{check}");
    }

    #[test]
    fn a_list_and_a_secret_are_read() {
        let folder = tempfile::TempDir::new().unwrap();
        let (list, secret) = (folder.path().join("list"), folder.path().join("secret"));
        let config = cluster::Config {
            engine: Kind::Static,
            members: cluster::members::Config {
                members: Some(list.display().to_string().into()),
                secret_file: Some(secret.clone()),
            },
            ..cluster::Config::default()
        };
        let warned = |named: &std::path::Path| {
            let check = engine(&config).unwrap();
            assert_eq!(check.verdict, Verdict::Warn);
            assert!(
                check.found.contains(&named.display().to_string()),
                "{check}"
            );
        };
        warned(&secret);
        std::fs::write(&secret, "a secret of many bytes").unwrap();
        warned(&list);
        std::fs::write(&list, "[[member]]").unwrap();
        warned(&list);
        let member = "[[member]]\nname = \"a\"\naddress = \"a.example:4443\"\n";
        std::fs::write(&list, member).unwrap();
        let check = engine(&config).unwrap();
        assert_eq!(check.verdict, Verdict::Ok, "{check}");
    }
}
