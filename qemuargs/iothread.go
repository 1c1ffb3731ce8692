package qemuargs

// IOThread is a thread of QEMU's that serves disks, so that the guest's I/O does not wait for QEMU's main loop.
type IOThread struct {
	ID string `json:"id"`
}

type ioThreadProps struct {
	QOMType string `json:"qom-type" rule:"a thread of QEMU's that serves disks"`
	ID      string `json:"id" from:"id"`
}

func (t IOThread) arg() Arg {
	return Arg{Flag: "-object", Value: ioThreadProps{QOMType: "iothread", ID: t.ID}, Of: Part{Field: "ioThreads", Name: t.ID}}
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
