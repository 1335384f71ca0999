//! The `_meta` of xy's own requests to modern servers. Pure.

use xy_mcp::members::Members;
use xy_mcp::modern::{RequestMeta, meta_for_modern};
use xy_mcp::via::{self, Via};

/// Returns xy as a client without capabilities, as no client stands behind its own requests.
pub(crate) fn own() -> RequestMeta {
    let version = env!("CARGO_PKG_VERSION");
    let info = format!(r#"{{"name":"xy","version":"{version}"}}"#);
    RequestMeta { capabilities: "{}".into(), info: Some(info.into()), level: None }
}

/// Returns params with the `_meta` that modern servers require, including the daemons that ask.
///
/// Values that an admin user has given are kept. Params or `_meta` that are no object are left
/// unchanged, for the server to refuse.
pub(crate) fn params(given: Option<&str>, daemons: &Via) -> String {
    let given = given.unwrap_or("{}");
    let Some(members) = Members::read(given) else { return given.to_owned() };
    let before = members.get("_meta");
    let given_meta = before.map_or_else(|| Some(Members::default()), Members::read);
    let Some(given_meta) = given_meta else { return given.to_owned() };
    let before = format!("{{{}}}", via::member(daemons));
    let own_meta = meta_for_modern(Some(&before), None, &own());
    let own_meta = Members::read(&own_meta).unwrap_or_default();
    let own_meta = own_meta.without(|key| given_meta.get(key).is_some());
    let meta = joined(&own_meta.to_string(), &given_meta.to_string());
    let rest = members.without(|key| key == "_meta").to_string();
    joined(&format!(r#"{{"_meta":{meta}}}"#), &rest)
}

/// Joins the members of two objects.
fn joined(one: &str, other: &str) -> String {
    match (one, other) {
        ("{}", it) | (it, "{}") => it.to_owned(),
        (one, other) => format!("{},{}", &one[..one.len() - 1], &other[1..]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use xy_mcp::modern::{CAPABILITIES, CLIENT_INFO, VERSION};
    use xy_mcp::via::Daemons;

    use super::*;

    fn via() -> Via {
        Via::of(&Daemons::one("d"))
    }

    fn meta(given: Option<&str>) -> Value {
        let params: Value = serde_json::from_str(&params(given, &via())).unwrap();
        params["_meta"].clone()
    }

    #[test]
    fn required_meta_is_added() {
        for given in [None, Some("{}"), Some(r#"{"cursor":"c"}"#)] {
            let meta = meta(given);
            assert_eq!((&meta[VERSION], &meta[CAPABILITIES]), (&json!("2026-07-28"), &json!({})));
            assert_eq!(meta[CLIENT_INFO]["name"], "xy");
            assert_eq!(meta[via::VIA], json!(["d"]));
        }
        assert!(params(Some(r#"{"cursor":1.50}"#), &via()).ends_with(r#","cursor":1.50}"#));
    }

    #[test]
    fn configured_meta_is_kept() {
        let given = format!(r#"{{"a":1,"_meta":{{"{CAPABILITIES}":{{"roots":{{}}}},"x":1.50}}}}"#);
        let meta = meta(Some(&given));
        assert_eq!(meta[CAPABILITIES], json!({ "roots": {} }));
        assert_eq!((&meta[VERSION], &meta["x"]), (&json!("2026-07-28"), &json!(1.5)));
        assert_eq!(params(Some(&given), &via()).matches(CAPABILITIES).count(), 1);
        for odd in ["7", "[1]", r#"{"_meta":7}"#] {
            assert_eq!(params(Some(odd), &via()), odd);
        }
    }
}
