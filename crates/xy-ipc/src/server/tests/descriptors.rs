//! Descriptors that come with an answer.

use std::fs::File;
use std::io::{Read as _, Seek as _};

use super::*;
use crate::Client;

#[tokio::test]
async fn descriptor_comes_with_its_answer_and_disturbs_no_other() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("s");
    let bound = crate::bind(&path).unwrap();
    let serving =
        tokio::spawn(serve(bound.listener, Arc::new(Scripted::default()), std::future::pending()));
    let asking = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.call(&Request::List).unwrap().get(), "[]");
        assert!(client.take_descriptor().is_none());
        assert_eq!(client.call(&Request::Version).unwrap().get(), "\"with it\"");
        let mut passed = File::from(client.take_descriptor().unwrap());
        passed.rewind().unwrap();
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "passed");
        assert_eq!(client.call(&Request::List).unwrap().get(), "[]");
        assert!(client.take_descriptor().is_none());
    });
    timeout(Duration::from_secs(20), asking).await.unwrap().unwrap();
    serving.abort();
}
