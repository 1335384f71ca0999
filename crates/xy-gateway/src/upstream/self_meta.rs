//! What xy's own requests say of it to a server of the revision without sessions. Pure.

use xy_mcp::members::Members;

use crate::modern::{RequestMeta, meta_for_modern};
use crate::via::{self, Via};

/// xy, as a client that can do nothing: nobody stands behind its own requests.
pub(crate) fn manner() -> RequestMeta {
    let version = env!("CARGO_PKG_VERSION");
    let info = format!(r#"{{"name":"xy","version":"{version}"}}"#);
    RequestMeta { capabilities: "{}".into(), info: Some(info.into()), level: None }
}

/// Returns params with all that this revision wants in `_meta`, and with the daemons that ask.
/// What a person has written there stays as it is, and what is no object is theirs to explain.
pub(crate) fn params(given: Option<&str>, daemons: &Via) -> String {
    let given = given.unwrap_or("{}");
    let Some(members) = Members::read(given) else { return given.to_owned() };
    let before = members.get("_meta");
    let theirs = before.map_or_else(|| Some(Members::default()), Members::read);
    let Some(theirs) = theirs else { return given.to_owned() };
    let before = format!("{{{}}}", via::member(daemons));
    let ours = meta_for_modern(Some(&before), None, &manner());
    let ours = Members::read(&ours).unwrap_or_default();
    let ours = ours.without(|key| theirs.get(key).is_some());
    let meta = joined(&ours.to_string(), &theirs.to_string());
    let rest = members.without(|key| key == "_meta").to_string();
    joined(&format!(r#"{{"_meta":{meta}}}"#), &rest)
}

/// The members of two objects in one.
fn joined(one: &str, other: &str) -> String {
    match (one, other) {
        ("{}", it) | (it, "{}") => it.to_owned(),
        (one, other) => format!("{},{}", &one[..one.len() - 1], &other[1..]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::modern::{CAPABILITIES, CLIENT_INFO, VERSION};
    use crate::via::Daemons;

    fn via() -> Via {
        Via::of(&Daemons::one("d"))
    }

    fn meta(given: Option<&str>) -> Value {
        let params: Value = serde_json::from_str(&params(given, &via())).unwrap();
        params["_meta"].clone()
    }

    #[test]
    fn all_is_said_that_has_to_be() {
        for given in [None, Some("{}"), Some(r#"{"cursor":"c"}"#)] {
            let meta = meta(given);
            assert_eq!((&meta[VERSION], &meta[CAPABILITIES]), (&json!("2026-07-28"), &json!({})));
            assert_eq!(meta[CLIENT_INFO]["name"], "xy");
            assert_eq!(meta[via::VIA], json!(["d"]));
        }
        assert!(params(Some(r#"{"cursor":1.50}"#), &via()).ends_with(r#","cursor":1.50}"#));
    }

    #[test]
    fn what_a_person_has_written_stays() {
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
