//! One life of a server that listens somewhere.

use std::rc::Rc;

use xy_supervisor::speak::Line;

use crate::hub::Hub;

pub(super) async fn live(_hub: Rc<Hub>, _line: Line) {}
