//! Fetching an image, and telling how far that is.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use tokio::sync::watch;
use tokio::time::timeout;

use super::engine::{Engine, next};
use super::{faults, login};

/// A registry that says nothing for so long is not there.
const WORD_WITHIN: Duration = Duration::from_secs(60);

/// No image takes longer.
const ALL_WITHIN: Duration = Duration::from_mins(30);

/// More layers than this are not counted one by one.
const MOST_LAYERS: usize = 1024;

/// Why an image was not fetched.
#[derive(Debug)]
pub(super) enum NotPulled {
    Refused(Error),
    Stalled,
    TooLong,
}

impl NotPulled {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Refused(why) => faults::words(why),
            Self::Stalled => format!("nothing was heard for {WORD_WITHIN:?}"),
            Self::TooLong => format!("it took longer than {ALL_WITHIN:?}"),
        }
    }
}

/// Fetches an image. Dropping it gives up.
pub(super) async fn pull(
    engine: &Engine,
    image: &str,
    platform: Option<&str>,
    progress: &watch::Sender<Option<String>>,
) -> Result<(), NotPulled> {
    progress.send_replace(Some(format!("pulling {image}")));
    let login = login::of_image(image, engine.kind()).await;
    let mut pieces = engine.pull(image, platform, login);
    let mut layers = Layers::default();
    let all = async {
        loop {
            match timeout(WORD_WITHIN, next(&mut pieces)).await {
                Err(_) => return Err(NotPulled::Stalled),
                Ok(None) => return Ok(()),
                Ok(Some(Err(why))) => return Err(NotPulled::Refused(why)),
                Ok(Some(Ok(info))) => {
                    let percent = layers.hear(&info);
                    let told = percent.map_or_else(String::new, |it| format!(" {it} %"));
                    // Also if nothing has changed: it is still going on.
                    progress.send_replace(Some(format!("pulling {image}{told}")));
                }
            }
        }
    };
    timeout(ALL_WITHIN, all).await.unwrap_or(Err(NotPulled::TooLong))
}

/// How much there is of each layer.
#[derive(Debug, Default)]
struct Layers {
    /// Bytes that are there, and bytes in all.
    known: HashMap<String, (u64, u64)>,
}

impl Layers {
    /// Hears one thing; how much is there of all that is known, in hundredths.
    fn hear(&mut self, info: &CreateImageInfo) -> Option<u64> {
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
        (all > 0).then(|| there * 100 / all)
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
