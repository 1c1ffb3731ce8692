package qmp

import "context"

// NBDServerStart has QEMU serve exports on a listening socket that GetFD gave.
func (c *Client) NBDServerStart(ctx context.Context, fd string, connections int) error {
	return c.Execute(ctx, "nbd-server-start", map[string]any{
		"addr": map[string]any{"type": "fd", "data": map[string]string{"str": fd}}, "max-connections": connections}, nil)
}

// NBDServerStop ends the server and its connections.
func (c *Client) NBDServerStop(ctx context.Context) error {
	return c.Execute(ctx, "nbd-server-stop", nil, nil)
}

// BlockExportAdd exports a block node, writable, under the node's name.
func (c *Client) BlockExportAdd(ctx context.Context, id, node string) error {
	return c.Execute(ctx, "block-export-add", map[string]any{"type": "nbd", "id": id, "node-name": node, "name": node, "writable": true}, nil)
}

// BlockExportDelete ends an export and its connections. The export is gone when
// QueryBlockExports lists it no more.
func (c *Client) BlockExportDelete(ctx context.Context, id string) error {
	return c.Execute(ctx, "block-export-del", map[string]string{"id": id, "mode": "hard"}, nil)
}

// QueryBlockExports returns the ids of the exports.
func (c *Client) QueryBlockExports(ctx context.Context) ([]string, error) {
	var exports []struct {
		ID string `json:"id"`
	}
	err := c.Execute(ctx, "query-block-exports", nil, &exports)
	var ids []string
	for _, e := range exports {
		ids = append(ids, e.ID)
	}
	return ids, err
}

// BlockdevAddNBD adds a node that is an export at the other end of a connection that GetFD gave.
func (c *Client) BlockdevAddNBD(ctx context.Context, node, fd, export string) error {
	return c.Execute(ctx, "blockdev-add", map[string]any{"driver": "nbd", "node-name": node, "export": export,
		"server": map[string]string{"type": "fd", "str": fd}}, nil)
}

// BlockdevDelete removes a node that nothing uses.
func (c *Client) BlockdevDelete(ctx context.Context, node string) error {
	return c.Execute(ctx, "blockdev-del", map[string]string{"node-name": node}, nil)
}

// BlockdevMirror begins a job that copies all of a node to another node, and from then on each
// write. A write counts as done when both nodes have it, so that the job gets ready however fast
// the guest writes.
func (c *Client) BlockdevMirror(ctx context.Context, job, device, target string, bytesPerSecond int64) error {
	return c.Execute(ctx, "blockdev-mirror", map[string]any{"job-id": job, "device": device, "target": target, "sync": "full",
		"copy-mode": "write-blocking", "speed": bytesPerSecond, "auto-dismiss": false}, nil)
}

// BlockJobCancel ends a job. A mirror that is ready has copied everything then. With force, the
// job drops what is not copied.
func (c *Client) BlockJobCancel(ctx context.Context, job string, force bool) error {
	return c.Execute(ctx, "block-job-cancel", map[string]any{"device": job, "force": force}, nil)
}

// JobDismiss forgets a job in state JobConcluded.
func (c *Client) JobDismiss(ctx context.Context, job string) error {
	return c.Execute(ctx, "job-dismiss", map[string]string{"id": job}, nil)
}

// States of jobs (qapi/job.json, JobStatus).
const (
	JobReady     = "ready"
	JobConcluded = "concluded"
)

// Job is a job of QEMU (qapi/job.json, JobInfo).
type Job struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Progress int64  `json:"current-progress"`
	Total    int64  `json:"total-progress"`
	Error    string `json:"error"`
}

// QueryJobs returns the jobs that were not dismissed.
func (c *Client) QueryJobs(ctx context.Context) ([]Job, error) {
	var jobs []Job
	err := c.Execute(ctx, "query-jobs", nil, &jobs)
	return jobs, err
}
