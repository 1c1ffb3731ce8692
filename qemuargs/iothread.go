package qemuargs

// IOThread is a thread of QEMU's that serves disks, so that the guest's I/O does not wait for QEMU's main loop.
type IOThread struct {
	ID string `json:"id"`
}

type ioThreadProps struct {
	QOMType string `json:"qom-type"`
	ID      string `json:"id"`
}

// ioThread is a thread as a part.
type ioThread struct {
	fixed
	IOThread
}

func (ioThread) inherits() []Inherited { return nil }
func (ioThread) plugs() bool           { return true }
func (t ioThread) entry() any          { return t.IOThread }

func (t ioThread) args(files) []Arg {
	return []Arg{{Flag: "-object", Value: ioThreadProps{QOMType: "iothread", ID: t.ID}}}
}

// queueThread is an entry of a disk's iothread-vq-mapping: QEMU shares the disk's queues out among the entries.
type queueThread struct {
	IOThread string `json:"iothread"`
}

func queueThreads(ids []string) (out []queueThread) {
	for _, id := range ids {
		out = append(out, queueThread{id})
	}
	return out
}
