//! Real groups, where they can be had.
