//! Opens the sessions of clients.

use std::rc::Rc;

use xy_http::frontend::{ClientSession, Entry, Frontend, Refusal, Responder};
use xy_transport::large::LargeReader;

use super::Client;
use crate::router::Router;

impl Frontend for Router {
    fn open(
        &self,
        entry: Entry,
        responder: Rc<dyn Responder>,
    ) -> Result<Rc<dyn ClientSession>, Refusal> {
        let client = Client::new(self.admit_client(entry)?, self.me(), responder);
        self.add_client(client.clone());
        Ok(client)
    }

    fn profiles(&self) -> Vec<String> {
        self.profile_names().into_iter().collect()
    }

    fn large_reader(&self) -> LargeReader {
        Self::large_reader(self)
    }
}
