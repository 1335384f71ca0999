//! Tests of descriptors that come with an answer.

use std::fs::File;
use std::io::{Read as _, Seek as _};

use super::*;
use crate::Client;

#[tokio::test]
async fn descriptor_arrives_with_its_answer() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("s");
    let bound = crate::bind(&path).unwrap();
    let server_task =
        tokio::spawn(serve(bound.listener, Arc::new(Scripted::default()), std::future::pending()));
    let client_task = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.call(&Request::List).unwrap().get(), "[]");
        assert!(client.take_descriptor().is_none());
        assert_eq!(client.call(&Request::Version).unwrap().get(), "\"with it\"");
        let mut file = File::from(client.take_descriptor().unwrap());
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "passed");
        assert_eq!(client.call(&Request::List).unwrap().get(), "[]");
        assert!(client.take_descriptor().is_none());
    });
    timeout(Duration::from_secs(20), client_task).await.unwrap().unwrap();
    server_task.abort();
}
