//! Finds loops of daemons by the daemons that a message has passed, like HTTP's `Via`. Pure.
//!
//! Each daemon has an id. Requests of xy name the daemons that ask: xy first, then those among its
//! clients ([`VIA`]). Results for another daemon name the daemons that they come from: xy, and
//! those behind its servers (`BEHIND`). Lists carry them too, so no list goes round.
//!
//! Clients and servers can lie. Only the first id of `via` hides servers, from that client alone. A
//! daemon that finds itself among the others refuses only if one of its servers confirms it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::edit::quoted;
use crate::members::Members;
use crate::modern::RequestError;

/// The key of `_meta` in a request: the daemons that ask.
pub const VIA: &str = "xy.daemon/via";

/// The key of `_meta` in a result: the daemons that it comes from.
pub(crate) const BEHIND: &str = "xy.daemon/behind";

/// The key of `_meta` in a result of xy with all its servers, as opposed to one of them.
pub(crate) const GATEWAY: &str = "xy.daemon/gateway";

/// The error code for a daemon that asks itself, and a key of the error's data.
const LOOP_DETECTED: i64 = -32025;
const LOOP: &str = "xy.daemon/loop";

/// Maximum number of daemons behind a server. More count as a loop.
///
/// The daemons behind all servers share it, so it is far above any real number: a server that
/// invents ids hides another only if that one names more.
pub(crate) const MAX_DAEMONS: usize = 256;

/// Maximum number of daemons that a request names beside the one that asks.
const MAX_BEFORE: usize = 32;

/// Maximum length of an id. xy's own have 32 characters.
const MAX_ID_LENGTH: usize = 64;

/// A set of daemon ids, with at most one more than the allowed number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemons(BTreeSet<Box<str>>);

impl Daemons {
    /// Returns a set of one daemon.
    pub fn one(id: &str) -> Self {
        Self([id.into()].into())
    }

    /// Reads a JSON list of ids.
    fn read(list: &str) -> Self {
        Self(read_ids(list).into_iter().take(MAX_DAEMONS + 1).collect())
    }

    /// Adds the ids of `others`, as far as there is room.
    pub fn add(&mut self, others: &Self) {
        self.add_within(others, MAX_DAEMONS + 1);
    }

    fn add_within(&mut self, others: &Self, most: usize) {
        for id in &others.0 {
            if self.0.len() >= most {
                return;
            }
            self.0.insert(id.clone());
        }
    }

    /// Returns true if the set exceeds the allowed number.
    fn is_long(&self) -> bool {
        self.0.len() > MAX_DAEMONS
    }

    /// Returns true if a daemon is in both sets, or if one of them is too large to be anything but
    /// a loop.
    pub fn is_loop_with(&self, others: &Self) -> bool {
        self.is_long() || others.is_long() || self.has_any_of(others)
    }

    /// Returns true if a daemon is in both sets.
    pub(crate) fn has_any_of(&self, others: &Self) -> bool {
        !self.0.is_disjoint(&others.0)
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn to_json(&self) -> String {
        to_json(self.0.iter())
    }
}

/// The daemons that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Via {
    /// The daemon that asks; empty if the client names none.
    asker: Daemons,
    /// The daemons among its clients, as it claims.
    before: Daemons,
}

impl Via {
    /// Creates a request path with this daemon only.
    pub fn of(asker: &Daemons) -> Self {
        Self { asker: asker.clone(), before: Daemons::default() }
    }

    /// Adds the daemons that a client names, as far as there is room.
    pub fn add_client(&mut self, client: &Self) {
        self.before.add_within(&client.asker, MAX_BEFORE);
        self.before.add_within(&client.before, MAX_BEFORE);
    }

    /// Returns the daemon that asks.
    pub fn asker(&self) -> &Daemons {
        &self.asker
    }

    /// Returns true if a request leads back to the daemon that asks.
    ///
    /// That daemon may be `behind` the result. Or `this` daemon is among its clients, and one of
    /// the `claims` of servers here names it. One of these two claims alone may be a lie.
    pub fn is_loop(
        &self,
        this: &Daemons,
        behind: &Daemons,
        mut claims: impl Iterator<Item = Daemons>,
    ) -> bool {
        self.asker.is_loop_with(behind)
            || self.before.has_any_of(this) && claims.any(|claim| claim.has_any_of(&self.asker))
    }

    fn read(list: &str) -> Self {
        let mut ids = read_ids(list).into_iter();
        let asker = Daemons(ids.next().into_iter().collect());
        Self { asker, before: Daemons(ids.take(MAX_BEFORE).collect()) }
    }
}

/// Reads a JSON list of ids and skips invalid ones.
fn read_ids(list: &str) -> Vec<Box<str>> {
    let list: Vec<Value> = serde_json::from_str(list).unwrap_or_default();
    let ids = list.iter().filter_map(Value::as_str);
    ids.filter(|id| !id.is_empty() && id.len() <= MAX_ID_LENGTH).map(Into::into).collect()
}

fn to_json<'i>(ids: impl Iterator<Item = &'i Box<str>>) -> String {
    let ids: Vec<String> = ids.map(|id| quoted(id)).collect();
    format!("[{}]", ids.join(","))
}

/// The servers of a daemon, as shown to another daemon.
#[derive(Debug, PartialEq, Eq)]
pub struct Horizon<S> {
    /// This daemon, and those behind the shown servers.
    pub behind: Daemons,
    /// The servers that are hidden.
    pub hidden: BTreeSet<S>,
}

/// Decides which servers are shown to the daemon that asks, by the daemons that each server claims
/// to have behind it. A server that leads back to the asker is hidden. So is one that would make
/// the list too long, the longest claim first.
pub fn horizon<S: Ord>(
    this: &Daemons,
    asker: &Daemons,
    mut claims: Vec<(S, Daemons)>,
) -> Horizon<S> {
    // The sort is stable: equal claims stay ordered by name.
    claims.sort_by_key(|(_, claim)| claim.0.len());
    let (mut behind, mut hidden) = (this.clone(), BTreeSet::new());
    for (server, claim) in claims {
        let mut with_claim = behind.clone();
        with_claim.add(&claim);
        if claim.is_loop_with(asker) || with_claim.is_long() {
            hidden.insert(server);
        } else {
            behind = with_claim;
        }
    }
    Horizon { behind, hidden }
}

/// Returns the member of `_meta` that names the daemons that ask.
pub fn member(via: &Via) -> String {
    format!(r#""{VIA}":{}"#, to_json(via.asker.0.iter().chain(&via.before.0)))
}

/// Returns the daemons that ask, from the `_meta` of a request; `None` if no daemon does.
pub fn of_request(meta: Option<&str>) -> Option<Via> {
    let meta = meta.filter(|meta| memchr::memmem::find(meta.as_bytes(), VIA.as_bytes()).is_some());
    Members::read(meta?)?.get(VIA).map(Via::read)
}

/// Returns the daemons that a result comes from, and whether it is of xy with all its servers.
pub fn of_result(result: &str) -> (Daemons, bool) {
    if memchr::memmem::find(result.as_bytes(), b"xy.daemon/").is_none() {
        return (Daemons::default(), false);
    }
    let meta = Members::read(result).and_then(|it| it.get("_meta").and_then(Members::read));
    let meta = meta.unwrap_or_default();
    let behind = meta.get(BEHIND).map(Daemons::read).unwrap_or_default();
    (behind, meta.get(GATEWAY) == Some("true"))
}

/// Adds to a result for another daemon which daemons it comes from.
pub fn marked(result: &str, behind: &Daemons, is_gateway: bool) -> String {
    let Some(members) = Members::read(result) else { return result.to_owned() };
    let before = members.get("_meta").and_then(Members::read).unwrap_or_default();
    let before = before.without(|key| key == BEHIND || (is_gateway && key == GATEWAY));
    let before = before.to_string();
    let before = &before[1..before.len() - 1];
    let comma = if before.is_empty() { "" } else { "," };
    let gateway = if is_gateway { format!(r#","{GATEWAY}":true"#) } else { String::new() };
    let ids = behind.to_json();
    let meta = format!(r#""_meta":{{"{BEHIND}":{ids}{gateway}{comma}{before}}}"#);
    let rest = members.without(|key| key == "_meta").to_string();
    let comma = if rest == "{}" { "" } else { "," };
    format!("{{{meta}{comma}{}", &rest[1..])
}

/// Returns the error for a daemon that asks itself.
pub fn refusal() -> RequestError {
    let wrong = RequestError::new(
        LOOP_DETECTED,
        "loop: this server leads back to the requesting xy daemon",
    );
    RequestError { data: Some(format!(r#"{{"{LOOP}":true}}"#)), ..wrong }
}

/// Returns true if the error in a whole response is [`refusal`]. Others may use its code too.
pub fn is_refusal(code: Option<i64>, answer: &str) -> bool {
    let says_so = || memchr::memmem::find(answer.as_bytes(), LOOP.as_bytes()).is_some();
    code == Some(LOOP_DETECTED) && says_so()
}

/// Why a server that leads back here is given up, and what to do.
pub const REASON: &str = "it leads back to this xy daemon, which would be an endless \
    loop: remove the server, or point it to another daemon";

#[cfg(test)]
mod tests {
    use super::*;

    fn daemons(ids: &[&str]) -> Daemons {
        Daemons(ids.iter().map(|id| (*id).into()).collect())
    }

    #[test]
    fn request_names_the_asking_daemons() {
        let via = |asker, before: &[&str]| Via { asker: daemons(asker), before: daemons(before) };
        let meta = format!(r#"{{"x":1,{}}}"#, member(&via(&["b"], &["a", "c"])));
        assert_eq!(meta, r#"{"x":1,"xy.daemon/via":["b","a","c"]}"#);
        assert_eq!(of_request(Some(&meta)), Some(via(&["b"], &["a", "c"])));
        for none in [None, Some("{}"), Some(r#"{"x":"xy.daemon/via"}"#), Some("xy.daemon/via")] {
            assert_eq!(of_request(none), None, "{none:?}");
        }
        for odd in ["7", "null", "{}", r#"[7,"",null]"#] {
            let meta = format!(r#"{{"{VIA}":{odd}}}"#);
            assert_eq!(of_request(Some(&meta)), Some(Via::default()), "{odd}");
        }
    }

    #[test]
    fn result_names_the_daemons_behind_it() {
        for (result, before) in [
            ("{}", r#"{"_meta":{M}}"#),
            (r#"{"a":1.50}"#, r#"{"_meta":{M},"a":1.50}"#),
            (r#"{"a":1,"_meta":{}}"#, r#"{"_meta":{M},"a":1}"#),
            (r#"{"_meta":{"x":{}},"a":1}"#, r#"{"_meta":{M,"x":{}},"a":1}"#),
        ] {
            let plain = marked(result, &daemons(&["b", "a"]), false);
            let mark = r#""xy.daemon/behind":["a","b"]"#;
            assert_eq!(plain, before.replace('M', mark), "{result}");
            assert_eq!(of_result(&plain), (daemons(&["a", "b"]), false));
            let gateway = marked(result, &daemons(&["a"]), true);
            assert_eq!(of_result(&gateway), (daemons(&["a"]), true));
            // The next hop adds another daemon.
            let again = marked(&gateway, &daemons(&["a", "c"]), true);
            assert_eq!(of_result(&again), (daemons(&["a", "c"]), true));
            assert_eq!(again.matches(BEHIND).count(), 1);
        }
        assert_eq!(marked("7", &daemons(&["a"]), true), "7");
        assert_eq!(of_result("{}"), (Daemons::default(), false));
    }

    #[test]
    fn server_hides_only_itself_by_its_claims() {
        let (this, asking) = (daemons(&["b"]), daemons(&["a"]));
        let ids: Vec<String> = (0..MAX_DAEMONS).map(|it| format!("d{it}")).collect();
        let many = daemons(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        let claims = || {
            let (back, good) = (daemons(&["a", "x"]), daemons(&["c"]));
            vec![("back", back), ("good", good), ("many", many.clone()), ("none", daemons(&[]))]
        };
        let horizon = horizon(&this, &asking, claims());
        assert_eq!(horizon.behind, daemons(&["b", "c"]));
        assert_eq!(horizon.hidden, ["back", "many"].into());
        assert!(!horizon.behind.is_loop_with(&asking));
    }

    #[test]
    fn invented_daemons_hide_no_other_server() {
        let invented: Vec<String> = (0..15).map(|it| format!("i{it}")).collect();
        let real: Vec<String> = (0..17).map(|it| format!("r{it}")).collect();
        let set = |ids: &[String]| Daemons(ids.iter().map(|id| id.as_str().into()).collect());
        let claims = vec![("hostile", set(&invented)), ("good", set(&real))];
        let horizon = horizon(&daemons(&["b"]), &daemons(&["a"]), claims);
        assert_eq!(horizon.hidden, BTreeSet::new());
        assert!(!horizon.behind.is_loop_with(&daemons(&["a"])));
    }

    #[test]
    fn loop_is_a_common_daemon_or_an_endless_chain() {
        let ab = daemons(&["a", "b"]);
        assert!(ab.is_loop_with(&daemons(&["b", "c"])));
        assert!(!ab.is_loop_with(&daemons(&["c"])) && !ab.is_loop_with(&Daemons::default()));
        let ids: Vec<String> = (0..1000).map(|it| format!("d{it}")).collect();
        let long = Daemons::read(&serde_json::to_string(&ids).unwrap());
        assert_eq!(long.0.len(), MAX_DAEMONS + 1, "no more is kept");
        assert!(long.is_loop_with(&ab) && ab.is_loop_with(&long));
        let most = Daemons::read(&serde_json::to_string(&ids[..MAX_DAEMONS]).unwrap());
        assert!(!most.is_loop_with(&ab));
        let mut both = most;
        both.add(&long);
        assert_eq!(both.0.len(), MAX_DAEMONS + 1);
    }

    #[test]
    fn loop_is_refused_only_if_a_server_confirms_it() {
        let (this, none) = (daemons(&["b"]), Daemons::default());
        let is_loop = |asker: &str, before: &[&str], behind: &Daemons, claims: &[&[&str]]| {
            let via = Via { asker: Daemons::one(asker), before: daemons(before) };
            via.is_loop(&this, behind, claims.iter().map(|claim| daemons(claim)))
        };
        assert!(is_loop("b", &[], &this, &[]), "it asks itself");
        assert!(is_loop("a", &[], &daemons(&["b", "a"]), &[]), "the answer comes from the asker");
        assert!(is_loop("a", &["b"], &none, &[&["c"], &["a"]]), "both say so");
        assert!(!is_loop("a", &["b"], &none, &[&["c"]]), "only a client says so");
        assert!(!is_loop("a", &["c"], &none, &[&["a"]]), "only a server says so");
    }

    #[test]
    fn request_names_a_bounded_number_of_daemons() {
        let ids: Vec<String> = (0..1000).map(|it| format!("d{it}")).collect();
        let many = Via::read(&serde_json::to_string(&ids).unwrap());
        let mut via = Via::of(&daemons(&["a"]));
        via.add_client(&many);
        assert_eq!((many.before.0.len(), via.before.0.len()), (MAX_BEFORE, MAX_BEFORE));
        assert_eq!(via.asker, daemons(&["a"]));
    }
}
