//! Fetching an image, and telling how far that is.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use tokio::sync::watch;
use tokio::time::timeout;

use super::engine::{Engine, next};
use super::faults;
use super::login::{self, NoLogin};
use crate::launch::Progress;
use crate::launch::orphans::Shims;

/// A registry that says nothing for so long is not there.
const WORD_WITHIN: Duration = Duration::from_secs(60);

/// No image takes longer.
const ALL_WITHIN: Duration = Duration::from_mins(30);

/// More layers than this are not counted one by one.
const MOST_LAYERS: usize = 1024;

/// Why an image was not fetched.
#[derive(Debug)]
pub(super) struct NotPulled {
    pub(super) why: Why,
    /// Who should have said who we are, and did not.
    pub(super) no_login: Option<NoLogin>,
}

#[derive(Debug)]
pub(super) enum Why {
    Refused(Error),
    Stalled,
    TooLong,
}

impl NotPulled {
    pub(super) fn words(&self) -> String {
        let why = match &self.why {
            Why::Refused(why) => faults::words(why),
            Why::Stalled => format!("nothing was heard for {}", shown(WORD_WITHIN)),
            Why::TooLong => format!("it took longer than {}", shown(ALL_WITHIN)),
        };
        match &self.no_login {
            Some(no_login) => format!("{why}; {no_login}"),
            None => why,
        }
    }
}

fn shown(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(time)
}

/// Fetches an image. Dropping it gives up.
pub(super) async fn pull(
    engine: &Engine,
    image: &str,
    platform: Option<&str>,
    shims: &Shims,
    progress: &watch::Sender<Option<Progress>>,
) -> Result<(), NotPulled> {
    let tell = |percent| {
        let what = format!("pulling {image}");
        progress.send_replace(Some(Progress { what, percent }));
    };
    tell(None);
    // Without a login it is tried as nobody: many images are for everybody.
    let (login, no_login) = match login::of_image(image, engine.kind(), shims).await {
        Ok(login) => (login, None),
        Err(why) => {
            tracing::warn!(image, "{why}");
            (None, Some(why))
        }
    };
    let mut pieces = engine.pull(image, platform, login);
    let mut layers = Layers::default();
    let all = async {
        loop {
            match timeout(WORD_WITHIN, next(&mut pieces)).await {
                Err(_) => return Err(Why::Stalled),
                Ok(None) => return Ok(()),
                Ok(Some(Err(why))) => return Err(Why::Refused(why)),
                // Also if nothing has changed: it is still going on.
                Ok(Some(Ok(info))) => tell(layers.hear(&info)),
            }
        }
    };
    let pulled = timeout(ALL_WITHIN, all).await.unwrap_or(Err(Why::TooLong));
    pulled.map_err(|why| NotPulled { why, no_login })
}

/// How much there is of each layer.
#[derive(Debug, Default)]
struct Layers {
    /// Bytes that are there, and bytes in all.
    known: HashMap<String, (u64, u64)>,
}

impl Layers {
    /// Hears one thing; how much is there of all that is known, in hundredths.
    fn hear(&mut self, info: &CreateImageInfo) -> Option<u8> {
        let detail = info.progress_detail.as_ref();
        let number = |it: Option<i64>| it.and_then(|it| u64::try_from(it).ok());
        if let Some(layer) = &info.id
            && (self.known.contains_key(layer) || self.known.len() < MOST_LAYERS)
        {
            let status = info.status.as_deref().unwrap_or_default();
            let so_far = self.known.get(layer).copied();
            let is_done =
                matches!(status, "Download complete" | "Pull complete" | "Already exists");
            match (detail.and_then(|it| number(it.current)), detail.and_then(|it| number(it.total)))
            {
                (Some(current), Some(total)) if status == "Downloading" => {
                    self.known.insert(layer.clone(), (current.min(total), total));
                }
                _ if is_done => {
                    let total = so_far.map_or(0, |(_, total)| total);
                    self.known.insert(layer.clone(), (total, total));
                }
                _ => {}
            }
        }
        let (there, all) = self
            .known
            .values()
            .fold((0, 0), |(there, all), (current, total)| (there + current, all + total));
        (all > 0).then(|| u8::try_from(u128::from(there) * 100 / u128::from(all)).unwrap_or(100))
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn info(layer: &str, status: &str, at: Option<(i64, i64)>) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(layer.into()),
            status: Some(status.into()),
            progress_detail: at.map(|(current, total)| ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            error_detail: None,
        }
    }

    #[test]
    fn a_pull_is_as_far_as_all_of_its_layers_together() {
        let mut layers = Layers::default();
        assert_eq!(layers.hear(&info("a", "Pulling fs layer", None)), None);
        assert_eq!(layers.hear(&info("a", "Downloading", Some((10, 100)))), Some(10));
        assert_eq!(layers.hear(&info("b", "Downloading", Some((30, 300)))), Some(10));
        assert_eq!(layers.hear(&info("a", "Download complete", None)), Some(32));
        assert_eq!(layers.hear(&info("a", "Extracting", Some((1, 100)))), Some(32));
        assert_eq!(layers.hear(&info("b", "Pull complete", None)), Some(100));
        assert_eq!(layers.hear(&info("c", "Downloading", Some((-1, 5)))), Some(100));
        assert_eq!(layers.hear(&info("d", "Downloading", Some((9, 0)))), Some(100));
    }
}
