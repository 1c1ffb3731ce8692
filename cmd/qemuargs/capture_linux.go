package main

import "syscall"

// endsWithUs makes the kernel end a program when this one ends, however it ends.
func endsWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
