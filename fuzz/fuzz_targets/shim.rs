//! Any bytes between daemon and shim: no panic, and a frame never takes more than is there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xy_shim::wire;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((frame, used))) = wire::parse(rest) {
        assert!(used <= rest.len());
        if let wire::Frame::Log { batch, .. } = frame {
            let taken: usize = wire::records(batch).map(|it| wire::record_size(it.line)).sum();
            assert!(taken <= batch.len());
        }
        rest = &rest[used..];
    }
});
