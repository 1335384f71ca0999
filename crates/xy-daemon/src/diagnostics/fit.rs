//! A report that is not too long: what matters least goes first, and that is told.

use serde_json::Value;
use xy_protocol::control::{Diagnostics, MOST_DIAGNOSTICS};

/// What can be left out, and how, from the least to the most important.
type Cut = (&'static str, fn(&mut Diagnostics));

const CUTS: [Cut; 6] = [
    ("all but the last 3 lines of stderr of each server", |report| {
        for server in &mut report.servers {
            server.stderr.drain(..server.stderr.len().saturating_sub(3));
        }
    }),
    ("metrics", |report| report.metrics.clear()),
    ("changes of state of servers", |report| {
        for status in report.servers.iter_mut().filter_map(|it| it.status.as_mut()) {
            if let Some(fields) = status.as_object_mut() {
                fields.remove("transitions");
            }
        }
    }),
    ("all stderr", |report| report.servers.iter_mut().for_each(|it| it.stderr.clear())),
    ("log files", |report| report.servers.iter_mut().for_each(|it| it.log_files.clear())),
    ("restarts", |report| report.restart_history.clear()),
];

/// The report within its bound.
pub(super) fn fitted(report: Diagnostics) -> serde_json::Result<Value> {
    fitted_within(report, MOST_DIAGNOSTICS)
}

fn fitted_within(mut report: Diagnostics, most: usize) -> serde_json::Result<Value> {
    let mut cuts = CUTS.into_iter();
    loop {
        if serde_json::to_string(&report)?.len() <= most {
            return serde_json::to_value(&report);
        }
        match cuts.next() {
            Some((what, cut)) => {
                cut(&mut report);
                report.left_out.push(what.to_owned());
            }
            // Then there are very many servers: half of them tell as much.
            None if report.servers.len() > 1 => {
                let kept = report.servers.len() / 2;
                let gone = report.servers.split_off(kept).len();
                report.left_out.push(format!("the last {gone} servers"));
            }
            None => {
                report.servers.clear();
                report.left_out = vec!["everything but this".to_owned()];
                report.configuration.problems.clear();
                return serde_json::to_value(&report);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use xy_protocol::control::{ConfigurationState, ServerReport, System};
    use xy_protocol::server::ServerName;
    use xy_protocol::time::Timestamp;

    use super::*;

    fn report(servers: usize) -> Diagnostics {
        let server = |number: usize| ServerReport {
            name: ServerName::new(&format!("s{number}")).unwrap(),
            configuration: json!({ "command": "x" }),
            status: Some(json!({ "transitions": ["t".repeat(100)], "state": "running" })),
            stderr: vec!["e".repeat(100); 20],
            log_files: Vec::new(),
        };
        Diagnostics {
            version: "1".into(),
            protocol: 1,
            timestamp: Timestamp::from_unix_millis(0),
            system: System {
                platform: "linux".into(),
                arch: "x".into(),
                total_memory: None,
                free_memory: None,
            },
            daemon: None,
            problem: None,
            paths: BTreeMap::new(),
            files: Vec::new(),
            configuration: ConfigurationState::default(),
            servers: (0..servers).map(server).collect(),
            restart_history: Vec::new(),
            metrics: [("m".to_owned(), 1.0)].into(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn what_fits_is_whole() {
        let value = fitted(report(10)).unwrap();
        assert_eq!(value.get("left_out"), None);
        assert_eq!(value["servers"][0]["stderr"].as_array().unwrap().len(), 20);
    }

    #[test]
    fn whatever_there_is_it_fits_and_says_what_is_missing() {
        for most in [100_000, 20_000, 5_000, 1_000] {
            let value = fitted_within(report(50), most).unwrap();
            let length = value.to_string().len();
            assert!(length <= most, "{length} > {most}");
            assert!(!value["left_out"].as_array().unwrap().is_empty());
        }
        let cut = fitted_within(report(50), 60_000).unwrap();
        assert_eq!(cut["servers"].as_array().unwrap().len(), 50);
        assert_eq!(cut["servers"][0]["stderr"].as_array().unwrap().len(), 3);
    }
}
