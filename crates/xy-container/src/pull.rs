//! Image pulls, with progress.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use tokio::sync::watch;
use tokio::time::timeout;
use xy_supervisor::launch::Progress;
use xy_supervisor::launch::Shims;

use crate::engine::{Engine, next};
use crate::login::{self, HelperError};

/// Time without progress after which a pull is given up.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which a pull is given up in any case.
pub(crate) const PULL_TIMEOUT: Duration = Duration::from_mins(30);

/// Maximum number of layers whose progress is counted.
const MAX_LAYERS: usize = 1024;

/// Why an image was not fetched.
#[derive(Debug)]
pub(crate) struct PullError {
    pub(crate) why: PullFailure,
    /// The failure of the credential helper, which made this an anonymous pull.
    pub(crate) login_error: Option<HelperError>,
}

#[derive(Debug)]
pub(crate) enum PullFailure {
    Refused(Error),
    Stalled,
    TooLong,
}

/// Fetches an image. Dropping the future cancels the pull.
pub(crate) async fn pull(
    engine: &Engine,
    image: &str,
    platform: Option<&str>,
    shims: &Shims,
    progress: &watch::Sender<Option<Progress>>,
) -> Result<(), PullError> {
    let tell = |percent| {
        let what = format!("pulling {image}");
        progress.send_replace(Some(Progress { what, percent }));
    };
    tell(None);
    // Without a login the pull is anonymous, which many images allow.
    let (login, login_error) = match login::of_image(image, engine.kind(), shims).await {
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
            match timeout(PROGRESS_TIMEOUT, next(&mut pieces)).await {
                Err(_) => return Err(PullFailure::Stalled),
                Ok(None) => return Ok(()),
                Ok(Some(Err(why))) => return Err(PullFailure::Refused(why)),
                // Reported even if nothing has changed, as a sign of life.
                Ok(Some(Ok(info))) => tell(layers.update(&info)),
            }
        }
    };
    let pulled = timeout(PULL_TIMEOUT, all).await.unwrap_or(Err(PullFailure::TooLong));
    pulled.map_err(|why| PullError { why, login_error })
}

/// Progress of each layer.
#[derive(Debug, Default)]
struct Layers {
    /// Bytes that are present, and total bytes.
    known: HashMap<String, (u64, u64)>,
}

impl Layers {
    /// Records one progress message; returns the progress of all known layers in percent.
    fn update(&mut self, info: &CreateImageInfo) -> Option<u8> {
        let detail = info.progress_detail.as_ref();
        let number = |it: Option<i64>| it.and_then(|it| u64::try_from(it).ok());
        if let Some(layer) = &info.id
            && (self.known.contains_key(layer) || self.known.len() < MAX_LAYERS)
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
    fn pull_progress_sums_all_layers() {
        let mut layers = Layers::default();
        assert_eq!(layers.update(&info("a", "Pulling fs layer", None)), None);
        assert_eq!(layers.update(&info("a", "Downloading", Some((10, 100)))), Some(10));
        assert_eq!(layers.update(&info("b", "Downloading", Some((30, 300)))), Some(10));
        assert_eq!(layers.update(&info("a", "Download complete", None)), Some(32));
        assert_eq!(layers.update(&info("a", "Extracting", Some((1, 100)))), Some(32));
        assert_eq!(layers.update(&info("b", "Pull complete", None)), Some(100));
        assert_eq!(layers.update(&info("c", "Downloading", Some((-1, 5)))), Some(100));
        assert_eq!(layers.update(&info("d", "Downloading", Some((9, 0)))), Some(100));
    }
}
