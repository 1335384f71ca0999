//! What people call a thing that a tool calls otherwise.
//!
//! A small table, written by hand: verbs and nouns that are common among tools, and what
//! they are shortened to. A line is a group of words that stand for each other; with `>` in
//! it, only what stands before finds what stands after. `_` joins the words of a phrase.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::stem::stem;
use crate::tuning::Stemming;

/// The most words of a phrase in the table.
pub(crate) const LONGEST_PHRASE: usize = 4;

const GROUPS: &[&str] = &[
    // What is done.
    "get fetch read retrieve show load view see display open lookup look_up give_me",
    "list show enumerate",
    "which what_are > list get find",
    "what how show_me > get list",
    "create add new make insert",
    "create start open > new",
    "file report raise > create",
    "delete remove drop erase destroy clear purge trash discard get_rid_of clean_up wipe",
    "delete forget",
    "update edit change modify patch set alter adjust rewrite replace",
    "replace overwrite substitute swap",
    "search find query look_for lookup look_up locate discover seek",
    "send post deliver",
    "write_to > send",
    "send sent",
    "find found",
    "make made",
    "run ran",
    "spend spent pay > cost payment",
    "say said told tell > message",
    "know > search read knowledge memory",
    "happen happened > recent latest news",
    "wrote written_by > author",
    "reply answer respond",
    "run execute invoke start trigger launch kick_off call perform",
    "stop halt end terminate shut_down pause turn_off switch_off quit",
    "kill end terminate force_quit",
    "cancel call_off abort delete",
    "copy duplicate clone",
    "own_copy > fork",
    "move rename relocate transfer shift",
    "postpone reschedule > update event",
    "merge combine join unite",
    "split cut divide",
    "trim cut crop shorten",
    "share give_access grant",
    "save store write put keep",
    "put_aside set_aside shelve > stash",
    "upload put store",
    "download pull fetch get",
    "export download save",
    "import upload load",
    "undo revert reset roll_back rollback",
    "undo unstage",
    "rerun retry restart run_again repeat",
    "schedule plan book arrange set_up",
    "approve accept confirm",
    "reject decline refuse dismiss",
    "dismiss close",
    "log record track",
    "describe explain details info information",
    "convert conversion turn_into transform change",
    "resize shrink enlarge scale",
    "increase raise more > scale update",
    "press click push tap",
    "type enter fill write input",
    "choose select pick",
    "check verify validate test",
    "enable turn_on switch_on activate",
    "on > turn_on",
    "disable turn_off switch_off deactivate",
    "close resolve finish complete done",
    "complete tick_off check_off finish",
    "resolve fix fixed",
    "silence mute snooze",
    "dim > brightness light",
    "warm warmer cooler heat heating > temperature climate",
    "remember memorize recall > memory observation",
    "suggest recommend propose advise",
    "prepare > draft create",
    "draw paint > generate image",
    "read_aloud say_aloud pronounce > speech",
    "speech_to_text dictate > transcribe",
    "summarize summary digest",
    "crawl spider",
    "scrape extract",
    "group sum average total > aggregate",
    "sum total > formula",
    "ban block > ban",
    "throw_out kick_out > kick remove",
    "hire invite > add member",
    "pay charge bill > payment invoice",
    "expire timeout ttl time_to_live",
    "cache > set key store",
    "wait pending waiting > open list",
    "waiting > status",
    "pass passed green > status checks",
    "fail failed broken > failed error logs",
    "overdue due late > due date",
    "delayed late > status",
    "assigned on_my_plate > assigned my",
    "hang hanging stuck > running process",
    "slow slowest slowly expensive performance",
    "healthy health > health check",
    "eat consume use > usage",
    "deploy publish go_live put_live ship release",
    "go_to visit browse > navigate",
    "hit > click",
    "fill_in fill_out > form fill",
    "grab snap > screenshot get",
    "tell_me let_me_see bring_up pull_up > get",
    "notify ping announce > send message post",
    "broadcast > publish",
    "star favorite favourite bookmark",
    "attach > attachment upload",
    "compress zip > archive",
    "install set_up",
    "upgrade update",
    "uninstall remove",
    "backup back_up > export copy",
    "restore > import",
    "compare > diff",
    "tally > count",
    "mean > average",
    "buy purchase > order",
    "reserve > book",
    "track trace > status",
    "watch monitor observe",
    "escalate > escalation",
    "ship > deliver fulfilment",
    "highlight bold > format",
    "proofread > edit",
    "expand shorten > edit",
    "attend > participant",
    // What is asked.
    "how_many number_of > count number statistics list",
    "how_much > price cost amount balance",
    "how_big how_large > size",
    "how_far > distance",
    "how_warm how_cold how_hot > temperature current",
    "how_do_i_get > directions",
    "why > explain reason cause logs",
    "who > user member author participant list",
    "when > time date",
    "where > location place search",
    // People and words between them.
    "email mail e_mail",
    "mail inbox mailbox",
    "newsletter spam > email",
    "message msg dm",
    "conversation discussion chat thread > message",
    "sms text_message",
    "text > sms",
    "user person member people account",
    "colleague friend coworker > user person share",
    "attendee participant guest",
    "who_was attended > participant",
    "admin administrator moderator > role permission",
    "group team",
    "channel room chat",
    "reaction emoji thumbs_up like",
    "status away busy presence",
    "comment remark note feedback",
    "invitation invite > event",
    "phone telephone mobile cell",
    "phone ring > call",
    "call phone",
    "language french german spanish english italian chinese japanese > translate language",
    "contact > customer",
    "dial > call",
    "minutes > transcript recording",
    "attendance > participant",
    // Work.
    "repository repo",
    "project open_source > repository",
    "pull_request pr",
    "merge_request mr",
    "issue ticket bug",
    "bug error > issue",
    "ticket story task > issue",
    "error crash exception failure",
    "error fail > logs",
    "stack_trace stacktrace traceback backtrace",
    "commit > git",
    "uncommitted unstaged > working directory changes",
    "branch > git",
    "change diff difference",
    "history log",
    "line_of_code > line file",
    "author > blame",
    "function method",
    "code source program",
    "regex regexp regular_expression",
    "ci pipeline build workflow checks",
    "action > workflow",
    "log logs output",
    "deployment release",
    "task todo to_do reminder",
    "remind reminder > task add",
    "sprint iteration cycle",
    "book_time log_time hours > worklog time",
    "priority urgency importance",
    "wiki confluence knowledge_base",
    "article post > page",
    "paragraph section text > block content",
    "note memo",
    "notes > note vault",
    "diary journal daily > periodic daily",
    "event appointment meeting",
    "agenda > calendar event list",
    "free available availability > freebusy busy availability",
    "meeting video_call conference",
    "tomorrow today week > date",
    "deal opportunity",
    "lead contact prospect",
    "crm > contact lead record",
    "kanban backlog > board sprint",
    "milestone > issue",
    "outage downtime incident",
    "exception trace > error",
    "latency uptime > metric monitor",
    "namespace > kubernetes",
    "ci_job > job pipeline",
    "overview summary",
    // Files and data.
    "folder directory dir",
    "document doc docs",
    "documentation docs manual reference",
    "spreadsheet sheet excel xls xlsx workbook",
    "sheet worksheet",
    "row record line entry",
    "column field",
    "chart graph plot diagram pie",
    "s3_file > object",
    "attachment attached",
    "database db",
    "table relation",
    "index indices indexes",
    "schema structure columns fields",
    "sql select_statement",
    "mongo mongodb",
    "postgres postgresql",
    "elastic elasticsearch",
    "document record",
    "cell > worksheet",
    "formula calculation calculate",
    "scan scanned paper > ocr scanned",
    "pdf > document",
    "full_text > search",
    "csv tsv > sheet rows",
    "dataset data",
    "notebook ipynb jupyter",
    "highlighted > format",
    "receipt > invoice",
    // The web.
    "page webpage web_page website site",
    "web internet online",
    "google > search web",
    "url link address",
    "browser chrome firefox",
    "button > click",
    "login log_in sign_in",
    "field > element form",
    "password > text secret",
    "drop_down dropdown menu > option",
    "popup pop_up dialog alert",
    "tab window",
    "screenshot screen_shot screen_capture picture_of",
    "http > network",
    "picture image photo pic",
    "icon logo > image",
    "news headlines",
    "domain hostname",
    "cdn > cache",
    "dns cname nameserver a_record > dns record",
    "package library module npm",
    "css style > design",
    "widget > component",
    "ui user_interface > design",
    "visit > page",
    // Machines.
    "kubernetes k8s kubectl cluster",
    "pod container",
    "yaml > manifest",
    "replicas copies",
    "vm virtual_machine > instance",
    "ec2 server > instance",
    "instance server machine",
    "host machine server",
    "machine computer pc system",
    "remote elsewhere",
    "alert alarm warning notification",
    "warning storm > alert",
    "firing active triggered > alert",
    "on_call oncall pager pager_duty",
    "shift > schedule override",
    "maintenance > downtime",
    "dashboard panel",
    "metric measure statistic",
    "secret password credential",
    "environment_variable env_var",
    "command shell terminal bash",
    "shell > exec command",
    "program process app application",
    "memory ram",
    "disk storage",
    "month year > period",
    "cost bill billing",
    "serverless > lambda function",
    "bucket storage",
    "cron > schedule",
    "infra infrastructure > resources",
    "tf > terraform",
    "prod > production",
    "staging > preview",
    "rights access permissions role",
    "quota > limit",
    // Money.
    "customer client buyer",
    "invoice bill",
    "refund money_back give_back reimburse",
    "discount coupon voucher promo",
    "price cost rate",
    "money balance payment",
    "money funds > balance",
    "subscription plan membership",
    "stock share ticker",
    "inventory stock",
    "crypto cryptocurrency bitcoin ethereum coin",
    "dollar euro pound yen > currency",
    "shop store",
    "order purchase",
    "item product article",
    "payout > balance",
    "chargeback > dispute",
    "revenue earnings profit > income financials",
    "portfolio > stock",
    "exchange_rate > currency convert",
    "price_of > price",
    // The world.
    "weather rain snow sunny wind storm",
    "rain snow will_it > forecast",
    "outside > weather current",
    "temperature warm cold hot degrees",
    "forecast tomorrow",
    "air polluted pollution smog > air quality pollutant",
    "sun_set > sunset",
    "sun_rise > sunrise",
    "now current currently right_now at_the_moment",
    "recent recently latest last newest",
    "time clock",
    "coordinates latitude longitude position gps",
    "route way directions navigate",
    "airport car by_car drive > directions",
    "distance far",
    "near nearby close_by near_me > local place",
    "restaurant hotel bar cafe > place local",
    "hotel accommodation apartment room stay somewhere_to_stay holiday_home > listing airbnb",
    "flight plane",
    "light lamp",
    "volume loud louder quieter loudness",
    "kitchen bedroom living_room bathroom garage > area room",
    "movie film clip video",
    "song track music tune jazz rock",
    "music song > play playback",
    "which_song what_song > playing now",
    "sound audio",
    "subtitles captions transcript",
    "color colour",
    "font typography",
    "trip travel vacation holiday > flight listing",
    "train bus tram > transit directions",
    "walk bike cycling > directions",
    "street > address",
    "review rating",
    "thermostat heater > climate temperature",
    "blinds curtain door garage_door > cover",
    "hoover > vacuum",
    "tv television > media player",
    "alarm > timer",
    "mp3 wav > audio",
    "gif > video",
    "thumbnail > image",
    "sketch > design draw",
    "design mockup",
    "shopping buy groceries > shopping list",
];

/// For each phrase, what else it is called.
#[derive(Debug, Default)]
pub(crate) struct Synonyms(HashMap<Vec<String>, Vec<Vec<String>>>);

impl Synonyms {
    /// The table, with words brought to their stems; made once.
    pub(crate) fn shared(stemming: Stemming) -> &'static Self {
        static TABLES: [OnceLock<Synonyms>; 3] = [const { OnceLock::new() }; 3];
        let table = match stemming {
            Stemming::None => &TABLES[0],
            Stemming::Plural => &TABLES[1],
            Stemming::Porter => &TABLES[2],
        };
        table.get_or_init(|| Self::new(stemming))
    }

    fn new(stemming: Stemming) -> Self {
        let mut table = Self::default();
        for group in GROUPS {
            let (from, to) = group.split_once('>').unwrap_or((group, group));
            let phrases = |side: &str| -> Vec<Vec<String>> {
                let stems = |phrase: &str| phrase.split('_').map(|it| stem(it, stemming)).collect();
                side.split_whitespace().map(stems).collect()
            };
            let others = phrases(to);
            for phrase in phrases(from) {
                table.add(&phrase, &others);
            }
        }
        table
    }

    fn add(&mut self, phrase: &[String], others: &[Vec<String>]) {
        let known = self.0.entry(phrase.to_owned()).or_default();
        for other in others {
            if *other != phrase && !known.contains(other) {
                known.push(other.clone());
            }
        }
    }

    /// What else the phrase is called.
    pub(crate) fn of(&self, phrase: &[String]) -> &[Vec<String>] {
        self.0.get(phrase).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(phrase: &str) -> Vec<String> {
        let stems: Vec<String> = phrase.split(' ').map(|it| stem(it, Stemming::Porter)).collect();
        let table = Synonyms::new(Stemming::Porter);
        table.of(&stems).iter().map(|it| it.join(" ")).collect()
    }

    #[test]
    fn a_group_goes_both_ways_and_an_arrow_one() {
        assert_eq!(others("pr"), ["pull request"]);
        assert_eq!(others("pull request"), ["pr"]);
        assert!(others("mail").contains(&"email".to_owned()));
        assert!(others("google").contains(&"search".to_owned()));
        assert!(!others("search").contains(&"googl".to_owned()));
        assert!(others("nothing").is_empty());
    }

    #[test]
    fn no_phrase_is_longer_than_is_looked_for() {
        let longest = GROUPS
            .iter()
            .flat_map(|group| group.split_whitespace())
            .map(|phrase| phrase.split('_').count())
            .max();
        assert!(longest.is_some_and(|it| it <= LONGEST_PHRASE), "{longest:?}");
    }
}
