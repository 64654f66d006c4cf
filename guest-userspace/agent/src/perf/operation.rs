//! What a workload thread does to an event, as a system call.

use std::os::fd::{AsRawFd, IntoRawFd};

use unwindlab_abi::{PerfOperation, PerfOperationKind};

use super::sys::request;
use super::{PerfError, PerfSession};
use crate::shared::OperationCall;

impl PerfSession {
    /// The system call of an operation. From now on an event that it closes belongs to it.
    ///
    /// # Errors
    /// [`PerfError::Operation`].
    pub fn call_of(&mut self, operation: &PerfOperation) -> Result<OperationCall, PerfError> {
        let missing = || PerfError::Operation(operation.event);
        let of = |event: &&mut super::Event| event.spec == operation.event;
        let event = self.events.iter_mut().find(of).ok_or_else(missing)?;
        let fd = event.fd.as_ref().ok_or_else(missing)?.as_raw_fd();
        let fd = u64::from(fd.unsigned_abs());
        let control = |request: u64, argument: u64| (libc::SYS_ioctl, vec![fd, request, argument]);
        let (number, arguments) = match operation.what {
            PerfOperationKind::Enable => control(request::ENABLE, 0),
            PerfOperationKind::Disable => control(request::DISABLE, 0),
            PerfOperationKind::Refresh(count) => control(request::REFRESH, count.into()),
            PerfOperationKind::Reset => control(request::RESET, 0),
            PerfOperationKind::Pause => control(request::PAUSE_OUTPUT, 1),
            PerfOperationKind::Close => {
                let _the_threads_now = event.fd.take().map(IntoRawFd::into_raw_fd);
                (libc::SYS_close, vec![fd])
            }
            PerfOperationKind::Unmap => {
                let ring = event.unread.take().ok_or_else(missing)?;
                let arguments = vec![ring.address(), ring.len()];
                // The thread unmaps it.
                std::mem::forget(ring);
                (libc::SYS_munmap, arguments)
            }
        };
        Ok(OperationCall {
            iteration: operation.iteration,
            number,
            arguments,
        })
    }
}
