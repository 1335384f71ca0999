//! Reduces a report to its size limit. The least important parts go first, and the report names
//! them.

use serde_json::Value;
use xy_protocol::control::{Diagnostics, MAX_DIAGNOSTICS_BYTES};

/// A part that can be left out, and the function that removes it. Ordered from the least important.
type Reduction = (&'static str, fn(&mut Diagnostics));

const REDUCTIONS: [Reduction; 6] = [
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

/// Returns the report, reduced to the size limit.
pub(super) fn fit_to_limit(report: Diagnostics) -> serde_json::Result<Value> {
    fit_within(report, MAX_DIAGNOSTICS_BYTES)
}

fn fit_within(mut report: Diagnostics, limit: usize) -> serde_json::Result<Value> {
    let mut reductions = REDUCTIONS.into_iter();
    loop {
        if serde_json::to_string(&report)?.len() <= limit {
            return serde_json::to_value(&report);
        }
        match reductions.next() {
            Some((what, cut)) => {
                cut(&mut report);
                report.left_out.push(what.to_owned());
            }
            // There are very many servers: half of them are as informative.
            None if report.servers.len() > 1 => {
                let kept = report.servers.len() / 2;
                let gone = report.servers.split_off(kept).len();
                report.left_out.push(format!("the last {gone} servers"));
            }
            None => {
                report.servers.clear();
                report.left_out = vec!["all servers, problems, metrics and restarts".to_owned()];
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
    fn small_report_is_complete() {
        let value = fit_to_limit(report(10)).unwrap();
        assert_eq!(value.get("left_out"), None);
        assert_eq!(value["servers"][0]["stderr"].as_array().unwrap().len(), 20);
    }

    #[test]
    fn large_report_is_reduced_and_names_missing_parts() {
        for limit in [100_000, 20_000, 5_000, 1_000] {
            let value = fit_within(report(50), limit).unwrap();
            let length = value.to_string().len();
            assert!(length <= limit, "{length} > {limit}");
            assert!(!value["left_out"].as_array().unwrap().is_empty());
        }
        let cut = fit_within(report(50), 60_000).unwrap();
        assert_eq!(cut["servers"].as_array().unwrap().len(), 50);
        assert_eq!(cut["servers"][0]["stderr"].as_array().unwrap().len(), 3);
    }
}
