//! Any bytes as a server file, as `xy.kdl`, as a profile and as a client's file: no panic, no overflow, no hang,
//! and nothing in a report that a terminal would obey.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_config::check_text;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    for name in ["servers/a.kdl", "xy.kdl", "profiles/a.kdl", "mcp.json"] {
        for problem in check_text(name, &text).problems {
            let report = problem.to_string();
            assert!(!report.chars().any(|c| c.is_control() && c != '\n'), "{report:?}");
        }
    }
});
